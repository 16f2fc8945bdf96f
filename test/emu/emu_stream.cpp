// emu_stream.cpp - the one stream: what is enqueued runs when the host waits for it, and no sooner.
// So a host that changes a pinned buffer while a copy from it is in flight is caught, and one that
// reads a result too early finds rubbish.
#include "test/emu/emu_internal.h"

#include <time.h>

#include <deque>

struct EmuEvent {
    uint64_t serial;  // of its record in the stream
    bool reached;
    timespec at;
};

namespace {

struct Stream {
    std::deque<std::function<void()>> work;
    uint64_t enqueued, done;
    bool running;
} stream;

struct Pinned {
    char *p;
    size_t bytes;
};
std::vector<Pinned> pinned_list;

bool is_pinned(const void *ptr, size_t n) {
    const char *p = static_cast<const char *>(ptr);
    for (const Pinned &b : pinned_list) {
        if (p >= b.p && p + n <= b.p + b.bytes) return true;
    }
    return false;
}

void run_until(uint64_t serial) {
    if (stream.running) return;  // a fault's sentence asks for nothing more
    stream.running = true;
    while (stream.done < serial) {
        std::function<void()> next = std::move(stream.work.front());
        stream.work.pop_front();
        emu.failed = false;
        next();
        stream.done++;
    }
    stream.running = false;
}

// The runtime accepts the range, or the fault says what is wrong with it.
cudaError_t check_range(const char *call, const void *p, size_t n) {
    if (!n || emu_allocated(p, n)) return cudaSuccess;
    emu_fail("%s: %zu bytes at %s are not device memory", call, n, emu_describe(p));
    return cudaErrorInvalidValue;
}

void copy_in(char *dst, const char *src, const std::vector<char> &then) {
    size_t n = then.size();
    if (src && memcmp(src, then.data(), n) != 0) {
        emu_fail("cudaMemcpyAsync to %s: the host changed the pinned memory while the copy was in "
                 "flight",
                 emu_describe(dst));
        return;
    }
    memcpy(dst, then.data(), n);
    if (emu_checking) emu_mark_init(dst, n);
}

}  // namespace

void emu_enqueue(std::function<void()> work) {
    stream.work.push_back(std::move(work));
    stream.enqueued++;
}

void emu_wait() {
    run_until(stream.enqueued);
}

// What is pageable is copied to a place of the driver's before the call returns.
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind kind,
                            cudaStream_t) {
    cudaError_t e = cudaSuccess;
    if (kind != cudaMemcpyDeviceToHost) e = check_range("cudaMemcpy to", dst, n);
    if (!e && kind != cudaMemcpyHostToDevice) e = check_range("cudaMemcpy from", src, n);
    if (e || !n) return e;
    char *to = static_cast<char *>(dst);
    const char *from = static_cast<const char *>(src);
    if (kind == cudaMemcpyHostToDevice) {
        const char *watched = is_pinned(src, n) ? from : nullptr;
        std::vector<char> now(from, from + n);
        emu_enqueue([=] { copy_in(to, watched, now); });
    } else if (kind == cudaMemcpyDeviceToDevice) {
        emu_enqueue([=] {
            memmove(to, from, n);
            if (emu_checking) emu_mark_copy(to, from, n);
        });
    } else {
        memset(to, 0x7F, n);  // until it lands
        emu_enqueue([=] { memcpy(to, from, n); });
        if (!is_pinned(dst, n)) emu_wait();
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t) {
    cudaError_t e = check_range("cudaMemset of", p, n);
    if (e || !n) return e;
    emu_enqueue([=] {
        memset(p, value, n);
        if (emu_checking) emu_mark_init(p, n);
    });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) {
    *s = reinterpret_cast<cudaStream_t>(&stream);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
    emu_wait();
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
    emu_wait();
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    *p = malloc(bytes);
    if (!*p) return cudaErrorMemoryAllocation;
    pinned_list.push_back({static_cast<char *>(*p), bytes});
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    emu_wait();
    for (size_t i = 0; i < pinned_list.size(); i++) {
        if (pinned_list[i].p != p) continue;
        pinned_list.erase(pinned_list.begin() + (ptrdiff_t)i);
        free(p);
        return cudaSuccess;
    }
    emu_fail("cudaFreeHost of %p, which cudaHostAlloc did not give", p);
    return cudaErrorInvalidValue;
}

cudaError_t cudaEventCreate(cudaEvent_t *e) {
    *e = new EmuEvent{};
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) {
    return cudaEventCreate(e);
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) {
    e->reached = false;
    emu_enqueue([=] {
        clock_gettime(CLOCK_MONOTONIC, &e->at);
        e->reached = true;
    });
    e->serial = stream.enqueued;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    run_until(e->serial);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (!from->reached || !to->reached) return cudaErrorNotReady;
    *ms = (float)((double)(to->at.tv_sec - from->at.tv_sec) * 1e3 +
                  (double)(to->at.tv_nsec - from->at.tv_nsec) * 1e-6);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    run_until(e->serial);
    delete e;
    return cudaSuccess;
}
