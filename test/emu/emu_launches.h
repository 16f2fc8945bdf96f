// emu_launches.h - what the emulator has run, for tests in C. On a GPU there is no such function,
// and its address is NULL.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Launches that have gone through since emu_forget_launches and stand in a source file whose path
// contains `part`; those still waiting in a stream do not count.
__attribute__((weak)) int emu_launches_from(const char *part);
__attribute__((weak)) void emu_forget_launches(void);

#ifdef __cplusplus
}
#endif
