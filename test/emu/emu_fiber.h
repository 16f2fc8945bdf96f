// emu_fiber.h - stacks and the switch between them. 12 instructions on x86-64, ucontext elsewhere.
#pragma once

#include <stddef.h>

struct EmuFiber {
    void *sp;    // where it left off: stack pointer, or a ucontext_t
    int stack;   // index of its stack, -1: none
    void *fake;  // AddressSanitizer's own bookkeeping
};

// Makes the fiber ready to run body() on a free stack. body must end with emu_fiber_leave.
void emu_fiber_start(EmuFiber *f, void (*body)());
// Host -> fiber; returns when the fiber leaves or yields.
void emu_fiber_enter(EmuFiber *f);
// The first thing that body does.
void emu_fiber_arrived(EmuFiber *f);
// Fiber -> host.
void emu_fiber_yield(EmuFiber *f);
// Gives the stack back (the fiber is finished or given up).
void emu_fiber_drop(EmuFiber *f);
bool emu_on_stack(const void *p);
