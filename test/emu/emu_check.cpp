// emu_check.cpp - checks every memory access of a kernel: inside an allocation, aligned, written
// before it is read, and ordered against other threads' accesses.
// The compiler's -fsanitize=thread puts a call before every access; the program is linked with the
// functions below instead of the thread sanitizer's library. Two bytes of device memory have one
// Cell of shadow. Threads of a block are ordered by block barriers, lanes of a warp also by
// __syncwarp; blocks of one launch are not ordered at all. Launches are.
#include "test/emu/emu_internal.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

bool emu_checking;

namespace {

enum { CELL_ALLOCATED = 1, CELL_INIT = 2, CELL_PENDING = 4, CELL_ATOMIC = 8 };
enum { GRANULE = 2 };  // bytes; single bytes are not told apart
const size_t PAGE = 4096;

// Who touched it. serial counts block barriers, over all blocks and launches.
struct Stamp {
    uint32_t serial;
    uint16_t thread, warp_epoch;
};

struct Cell {
    Stamp write, read, read2;  // last writer; two readers that differ as far as they can
    uint32_t old_read;         // serial of a read by an earlier block
    uint32_t flags;
};

struct Check {
    Cell *shadow;
    const char *base;
    uint32_t serial, block_first, launch_first;
    const char *read_only[16][2];  // segments that the program may read: constants
    int n_read_only;
    const char *load_address;
} check;

int note_segments(dl_phdr_info *info, size_t, void *) {
    if (!check.load_address) check.load_address = reinterpret_cast<const char *>(info->dlpi_addr);
    for (int i = 0; i < info->dlpi_phnum && check.n_read_only < 16; i++) {
        const ElfW(Phdr) &h = info->dlpi_phdr[i];
        if (h.p_type != PT_LOAD || h.p_flags & PF_W) continue;
        const char *start = reinterpret_cast<const char *>(info->dlpi_addr + h.p_vaddr);
        check.read_only[check.n_read_only][0] = start;
        check.read_only[check.n_read_only++][1] = start + h.p_memsz;
    }
    return 0;
}

bool is_constant(const char *p) {
    const char *args = static_cast<const char *>(emu.launch->args);
    if (p >= args && p < args + emu.launch->args_bytes) return true;
    for (int i = 0; i < check.n_read_only; i++) {
        if (p >= check.read_only[i][0] && p < check.read_only[i][1]) return true;
    }
    return false;
}

Cell *cell_of(const void *p) {
    return check.shadow + (static_cast<const char *>(p) - check.base) / GRANULE;
}

const char *at_cell(const Cell *c) {
    return check.base + (c - check.shadow) * GRANULE;
}

template <typename F> void each_cell(const void *p, size_t n, F change) {
    Cell *end = cell_of(static_cast<const char *>(p) + n + GRANULE - 1);
    for (Cell *c = cell_of(p); c < end; c++)
        change(c);
}

// "file:line" of an instruction.
void source_line(char *text, size_t size, const void *pc) {
    char command[200], exe[100];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    snprintf(text, size, "%p", pc);
    if (n <= 0) return;
    exe[n] = 0;
    snprintf(command, sizeof command, "addr2line -e '%s' %tx 2>/dev/null", exe,
             static_cast<const char *>(pc) - 1 - check.load_address);
    FILE *f = popen(command, "r");
    if (!f) return;
    char line[512];
    if (fgets(line, sizeof line, f) && line[0] != '?') {
        line[strcspn(line, " \n")] = 0;
        snprintf(text, size, "%s", line);
    }
    pclose(f);
}

struct Access {
    const void *p;
    size_t n, alignment;
    EmuAccess kind;
    const char *file;
    int line;
    const void *pc;
};

void fail(const Access &a, const char *why, const Stamp *other = nullptr) {
    static const char *const verb[] = {"reads", "writes", "atomically updates"};
    char where[600], whom[32] = "";
    if (a.file)
        snprintf(where, sizeof where, "%s:%d", a.file, a.line);
    else
        source_line(where, sizeof where, a.pc);
    if (other) snprintf(whom, sizeof whom, " thread %d", other->thread);
    emu_fail("%s %zu bytes at %s, %s%s, at %s", verb[a.kind], a.n, emu_describe(a.p), why, whom,
             where);
}

// Not ordered before the access of the current thread, which stands in the same block.
bool unordered(const Stamp &s, const EmuThread *t) {
    if (s.serial != check.serial || s.thread == t->index) return false;
    return s.thread / 32 != t->index / 32 || s.warp_epoch == (uint16_t)t->warp_epoch;
}

bool by_earlier_block(uint32_t serial) {
    return serial >= check.launch_first && serial < check.block_first;
}

// Keeps two readers of this epoch, of different warps where there are any: any other thread that
// writes then conflicts with one of them.
void note_read(Cell *c, const Stamp &now, const EmuThread *t) {
    if (by_earlier_block(c->read.serial)) c->old_read = c->read.serial;
    if (!unordered(c->read, t)) {
        bool other_warp = c->read.serial == check.serial && c->read.thread / 32 != t->index / 32;
        if (!other_warp) {
            if (c->read2.serial != check.serial) c->read2 = {};
            c->read = now;
            return;
        }
    }
    if (c->read2.serial != check.serial || c->read2.thread / 32 == c->read.thread / 32) {
        c->read2 = now;
    }
}

bool check_cell(Cell *c, const Access &a, const EmuThread *t, const Stamp &now, bool shared) {
    bool atomic = a.kind == EMU_ATOMIC && c->flags & CELL_ATOMIC;
    if (!(c->flags & CELL_ALLOCATED)) {
        if (!emu_exists(at_cell(c))) return fail(a, "out of bounds"), false;
        c->flags |= CELL_ALLOCATED;
    }
    if (c->flags & CELL_PENDING) return fail(a, "where a cp.async is in flight"), false;
    if (a.kind != EMU_WRITE && !(c->flags & CELL_INIT)) return fail(a, "never written"), false;
    if (!atomic && unordered(c->write, t)) {
        return fail(a, "without a barrier after the write by", &c->write), false;
    }
    if (!shared && !atomic && by_earlier_block(c->write.serial)) {
        return fail(a, "which another block of this launch wrote"), false;
    }
    if (a.kind == EMU_READ) {
        note_read(c, now, t);
        return true;
    }
    if (unordered(c->read, t))
        return fail(a, "without a barrier after the read by", &c->read), false;
    if (unordered(c->read2, t)) {
        return fail(a, "without a barrier after the read by", &c->read2), false;
    }
    if (!shared && (by_earlier_block(c->read.serial) || by_earlier_block(c->old_read))) {
        return fail(a, "which another block of this launch read"), false;
    }
    c->write = now;
    c->flags = (c->flags & ~(unsigned)CELL_ATOMIC) | CELL_INIT |
               (a.kind == EMU_ATOMIC ? (unsigned)CELL_ATOMIC : 0u);
    return true;
}

void check_access(const Access &a) {
    const EmuArena &arena = emu_arena();
    const char *p = static_cast<const char *>(a.p);
    bool device = (size_t)((uintptr_t)p - (uintptr_t)arena.base) < arena.bytes;
    const EmuThread *t = emu.current;
    if (!t) {
        if (device) fail(a, "device memory touched by the host");
        return;
    }
    if (!device) {
        if (!emu_on_stack(p) && !(a.kind == EMU_READ && is_constant(p))) {
            fail(a, "host memory touched by a kernel");
        }
        return;
    }
    if ((uintptr_t)p % a.alignment) return fail(a, "misaligned");
    Stamp now = {check.serial, (uint16_t)t->index, (uint16_t)t->warp_epoch};
    Cell *end = cell_of(p + a.n + GRANULE - 1);
    bool shared = emu_is_shared(p);
    for (Cell *c = cell_of(p); c < end; c++) {
        if (!check_cell(c, a, t, now, shared)) return;
    }
}

}  // namespace

void emu_check_open(const EmuArena &a) {
    check.shadow = reinterpret_cast<Cell *>(emu_reserve(a.bytes / GRANULE * sizeof(Cell)));
    check.base = a.base;
    if (!check.shadow) emu_fail("no address space for the shadow of device memory");
    dl_iterate_phdr(note_segments, nullptr);
}

void emu_check_access(const void *p, size_t n, EmuAccess kind, const char *file, int line,
                      const void *pc) {
    if (emu_checking) check_access({p, n, 1, kind, file, line, pc});
}

void emu_check_launch() {
    check.launch_first = check.serial + 1;
}
void emu_check_block() {
    check.block_first = ++check.serial;
}
void emu_check_barrier() {
    check.serial++;
}

// Whole pages go back to the system and read as zero: a cell of zeros is one that was never
// touched, and whether its memory exists is asked at the first access.
void emu_mark_fresh(const void *p, size_t n) {
    char *first = reinterpret_cast<char *>(cell_of(p));
    char *end = reinterpret_cast<char *>(cell_of(static_cast<const char *>(p) + n + GRANULE - 1));
    char *page = reinterpret_cast<char *>(((uintptr_t)first + PAGE - 1) / PAGE * PAGE);
    char *last = reinterpret_cast<char *>((uintptr_t)end / PAGE * PAGE);
    if (n < 64 * 1024 || last <= page) {
        memset(first, 0, (size_t)(end - first));
        return;
    }
    memset(first, 0, (size_t)(page - first));
    madvise(page, (size_t)(last - page), MADV_DONTNEED);
    memset(last, 0, (size_t)(end - last));
}
void emu_mark_init(const void *p, size_t n) {
    each_cell(p, n, [](Cell *c) { c->flags |= CELL_INIT; });
}
bool emu_is_init(const void *p, size_t n) {
    bool all = true;
    each_cell(p, n, [&all](const Cell *c) { all &= (c->flags & CELL_INIT) != 0; });
    return all;
}
void emu_mark_copy(const void *dst, const void *src, size_t n) {
    const Cell *from = cell_of(src);
    each_cell(dst, n, [&from](Cell *c) {
        c->flags = (c->flags & ~(unsigned)CELL_INIT) | (from++->flags & CELL_INIT);
    });
}
void emu_mark_pending(const void *p, size_t n, bool pending) {
    each_cell(p, n, [=](Cell *c) {
        c->flags = (c->flags & ~(unsigned)CELL_PENDING) | (pending ? (unsigned)CELL_PENDING : 0u);
    });
}

// --- What instrumented code calls. Aligned entry points mean that the type promises alignment.
extern "C" {

void __tsan_init() {
    emu_checking = true;
}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

#define EMU_HOOK(name, bytes, kind, alignment)                                                     \
    void name(void *p) {                                                                           \
        check_access({p, bytes, alignment, kind, nullptr, 0, __builtin_return_address(0)});        \
    }
#define EMU_HOOKS(bytes)                                                                           \
    EMU_HOOK(__tsan_read##bytes, bytes, EMU_READ, bytes)                                           \
    EMU_HOOK(__tsan_write##bytes, bytes, EMU_WRITE, bytes)                                         \
    EMU_HOOK(__tsan_unaligned_read##bytes, bytes, EMU_READ, 1)                                     \
    EMU_HOOK(__tsan_unaligned_write##bytes, bytes, EMU_WRITE, 1)
EMU_HOOKS(1)
EMU_HOOKS(2)
EMU_HOOKS(4)
EMU_HOOKS(8)
EMU_HOOKS(16)

void __tsan_read_range(void *p, unsigned long n) {
    if (n) check_access({p, n, 1, EMU_READ, nullptr, 0, __builtin_return_address(0)});
}
void __tsan_write_range(void *p, unsigned long n) {
    if (n) check_access({p, n, 1, EMU_WRITE, nullptr, 0, __builtin_return_address(0)});
}
}
