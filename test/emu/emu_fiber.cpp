// emu_fiber.cpp - see emu_fiber.h. A finished fiber's stack is used by the next one, so threads
// that never meet a barrier all run on one.
#include "test/emu/emu_fiber.h"

#include "test/emu/emu_internal.h"

#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
    #define EMU_ASAN 1
#elif defined(__has_feature)
    #if __has_feature(address_sanitizer)
        #define EMU_ASAN 1
    #endif
#endif
#ifdef EMU_ASAN
    #include <sanitizer/asan_interface.h>
#endif

namespace {

// Stacks lie a power of two apart: each begins a few cache lines lower than the one before, or all
// their first lines would fall into the same cache set.
const size_t STACK_BYTES = 128 * 1024, GUARD_BYTES = 4096, STAGGER = 5 * 64,
             STAGGER_MOST = 32 * 1024;

struct Stacks {
    char *base;
    int free[EMU_MAX_THREADS];
    int n_free;
    void *host_sp;
    void *host_fake;
    const void *host_bottom;
    size_t host_bytes;
} stacks;

char *stack_bottom(int i) {
    return stacks.base + (size_t)i * STACK_BYTES + GUARD_BYTES;
}
size_t stack_bytes(int i) {
    return STACK_BYTES - GUARD_BYTES - (size_t)i * STAGGER % STAGGER_MOST;
}

void stacks_open() {
    stacks.base = emu_reserve(STACK_BYTES * EMU_MAX_THREADS);
    for (int i = 0; i < EMU_MAX_THREADS; i++) {
        mprotect(stacks.base + (size_t)i * STACK_BYTES, GUARD_BYTES, PROT_NONE);
        stacks.free[i] = EMU_MAX_THREADS - 1 - i;
    }
    stacks.n_free = EMU_MAX_THREADS;
}

}  // namespace

#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
extern "C" void emu_switch(void **save, void *to);
// The callee-saved registers of the System V ABI go onto the old stack and come from the new one.
asm(".text\n"
    ".globl emu_switch\n"
    ".type emu_switch,@function\n"
    "emu_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
    "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n"
    "    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size emu_switch,.-emu_switch\n");

static void *prepare(char *bottom, size_t bytes, void (*body)()) {
    void **top = reinterpret_cast<void **>(bottom + bytes);
    *--top = nullptr;  // body's return address: none
    *--top = reinterpret_cast<void *>(
        body);       // where emu_switch's ret goes, with the stack as after a call
    return top - 6;  // six registers, whatever they hold
}
static void switch_to(void **save, void *to) {
    emu_switch(save, to);
}
#else
    #include <ucontext.h>
static ucontext_t contexts[EMU_MAX_THREADS], host_context;

static void *prepare(char *bottom, size_t bytes, void (*body)()) {
    ucontext_t *c = &contexts[(bottom - stacks.base) / STACK_BYTES];
    getcontext(c);
    c->uc_stack.ss_sp = bottom;
    c->uc_stack.ss_size = bytes;
    c->uc_link = nullptr;
    makecontext(c, body, 0);
    return c;
}
static void switch_to(void **save, void *to) {
    if (save == &stacks.host_sp) *save = &host_context;
    swapcontext(static_cast<ucontext_t *>(*save), static_cast<ucontext_t *>(to));
}
#endif

bool emu_on_stack(const void *p) {
    return (size_t)((uintptr_t)p - (uintptr_t)stacks.base) < STACK_BYTES * EMU_MAX_THREADS;
}

void emu_fiber_start(EmuFiber *f, void (*body)()) {
    if (!stacks.base) stacks_open();
    f->stack = stacks.free[--stacks.n_free];
    f->sp = prepare(stack_bottom(f->stack), stack_bytes(f->stack), body);
    f->fake = nullptr;
#ifdef EMU_ASAN
    // A fiber that was given up left its frames marked.
    __asan_unpoison_memory_region(stack_bottom(f->stack), stack_bytes(f->stack));
#endif
}

void emu_fiber_enter(EmuFiber *f) {
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&stacks.host_fake, stack_bottom(f->stack),
                                   stack_bytes(f->stack));
#endif
    switch_to(&stacks.host_sp, f->sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(stacks.host_fake, nullptr, nullptr);
#endif
}

void emu_fiber_arrived(EmuFiber *f) {
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(f->fake, &stacks.host_bottom, &stacks.host_bytes);
#else
    (void)f;
#endif
}

void emu_fiber_yield(EmuFiber *f) {
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&f->fake, stacks.host_bottom, stacks.host_bytes);
#endif
    switch_to(&f->sp, stacks.host_sp);
    emu_fiber_arrived(f);
}

void emu_fiber_drop(EmuFiber *f) {
    if (f->stack < 0) return;
    stacks.free[stacks.n_free++] = f->stack;
    f->stack = -1;
}
