// emu_coverage.cpp - notes which kernels this program launched in which thread orders, and writes
// them when it ends to $GPU_EMU_COVERAGE/<program>.launches: one line "order address bytes" each,
// the address as the program's symbol table has it, the bytes of shared memory. coverage.sh
// compares them with what was compiled. Tests ask how many came from a file (emu_launches.h).
#include "test/emu/emu_internal.h"
#include "test/emu/emu_launches.h"

#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>

namespace {

std::set<std::string> &launches() {
    static std::set<std::string> all;
    return all;
}

std::map<std::string, int> &launches_by_file() {
    static std::map<std::string, int> all;
    return all;
}

int find_load_address(dl_phdr_info *info, size_t, void *to) {
    *static_cast<uintptr_t *>(to) = info->dlpi_addr;
    return 1;  // the program itself comes first
}

void write_launches() {
    char exe[512], path[1024];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    const char *name = strrchr(exe, '/');
    snprintf(path, sizeof path, "%s/%s.launches", getenv("GPU_EMU_COVERAGE"),
             name ? name + 1 : "unknown");
    FILE *f = fopen(path, "w");
    for (const std::string &line : launches()) {
        if (f) fprintf(f, "%s\n", line.c_str());
    }
    if (!f || fclose(f)) fprintf(stderr, "GPU_EMU_COVERAGE: %s: %s\n", path, strerror(errno));
}

}  // namespace

extern "C" void emu_forget_launches(void) {
    launches_by_file().clear();
}
extern "C" int emu_launches_from(const char *part) {
    int n = 0;
    for (const auto &[file, count] : launches_by_file())
        n += file.find(part) != std::string::npos ? count : 0;
    return n;
}

void emu_coverage_note(const EmuLaunch &l, const char *order) {
    static bool wanted = getenv("GPU_EMU_COVERAGE") && emu_checking;
    static uintptr_t loaded_at;
    launches_by_file()[l.file]++;
    if (!wanted) return;
    if (launches().empty()) {
        dl_iterate_phdr(find_load_address, &loaded_at);
        atexit(write_launches);
    }
    char line[96];
    snprintf(line, sizeof line, "%s %016zx %zu", order, (uintptr_t)l.kernel - loaded_at,
             l.shared_bytes);
    launches().insert(line);
}
