// sort.h - a stable sort of non-negative ints below 2^24 on the device.
#pragma once

#include "kernels/cuda/device.h"

// Keys in ascending order, and where each stood; equal keys keep their order.
typedef struct Sorted {
    const int *key, *index;  // (n), in device memory
} Sorted;

size_t sort_bytes(size_t n);
// scratch: sort_bytes(n), 4-byte aligned; the result lies inside.
Sorted sort_keys(const int *keys, size_t n, void *scratch);
