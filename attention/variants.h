// variants.h - the units that attention.c lists. Only attention/ includes this.
#pragma once

#include "attention/attention.h"

extern const Attention attention_mha, attention_mqa, attention_gqa;  // gqa.c
extern const Attention attention_mla;                                // mla.c
extern const Attention attention_lrkv;                               // lrkv.c
