// attention.c - the table of variants and what follows from their rows alone.
#include "attention/attention.h"

#include "attention/variants.h"

#include <string.h>

const Attention *const attention_table[] = {
    &attention_mha, &attention_mqa, &attention_gqa, &attention_mla, &attention_lrkv, NULL,
};

const Attention *attention_find(const char *name) {
    for (int i = 0; attention_table[i]; i++) {
        if (strcmp(attention_table[i]->name, name) == 0) return attention_table[i];
    }
    return NULL;
}

size_t attention_cache_values(const Attention *a, const AttnDims *d) {
    TensorSpec row[ATTN_MAX_TENSORS] = {0};
    size_t sum = 0;
    int n = a->cache(row, d);
    for (int i = 0; i < n; i++)
        sum += (size_t)row[i].dim[1];
    return sum;
}

int attention_rope_width(const AttnDims *d) {
    if (d->position != POSITION_ROPE) return 0;
    return d->HR ? d->HR : d->HS;
}
