// dirs.h - directories as checkpoints need them: list, delete, flush, hash what lies inside.
// Nothing here knows what the files mean.
#pragma once

#include "gpt/util.h"

typedef struct DirList {
    char **name;  // (n), sorted bytewise, without "." and ".."
    int n;
} DirList;

bool dir_list(DirList *l, const char *path, Error *err);
void dir_list_free(DirList *l);
// Deletes the tree; does not follow links. What is not there counts as deleted.
bool dir_remove(const char *path, Error *err);
// Flushes the names inside to the disk, so that a rename survives a power failure.
bool dir_sync(const char *path, Error *err);
// rename(2) with a sentence.
bool file_rename(const char *from, const char *to, Error *err);
// Length and hash64 of the contents.
bool file_hash(const char *path, uint64_t *bytes, uint64_t *hash, Error *err);
bool file_size(const char *path, uint64_t *bytes, Error *err);
// Bytes that this user may still write there; 0 when that cannot be told.
uint64_t disk_free_bytes(const char *path);
