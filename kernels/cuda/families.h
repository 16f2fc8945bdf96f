// families.h - every file of ops fills in its part of the table, for T = float or bf16.
#pragma once

#include "kernels/ops.h"

template <typename T> void memory_ops(Ops *o);
template <typename T> void norm_ops(Ops *o);
template <typename T> void rope_ops(Ops *o);
template <typename T> void optim_ops(Ops *o);
template <typename T> void grad_ops(Ops *o);
template <typename T> void act_ops(Ops *o);
template <typename T> void heads_ops(Ops *o);
template <typename T> void cache_ops(Ops *o);
template <typename T> void classifier_ops(Ops *o);
template <typename T> void embed_ops(Ops *o);
template <typename T> void gemm_ops(Ops *o);
template <typename T> void sdpa_ops(Ops *o);
template <typename T> void lowrank_ops(Ops *o);
template <typename T> void peak_ops(Ops *o);
