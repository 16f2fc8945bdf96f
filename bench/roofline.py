#!/usr/bin/env python3
"""roofline.py - what each CUDA kernel has to compute and to move in a training step, and the time that this takes at least.

Counts what the kernels of kernels/cuda do, one line for each launch (all layers together, for one token): FLOPs of the
products, bytes that must come from or go to memory when every kernel reads its inputs and writes its outputs once, and special
functions where they matter. The bound is the slowest of the three at the device's peak; "expected" divides it by the share
of the peak that good kernels of that kind are known to reach. Nothing here was measured.

    bench/roofline.py                                     configs/128m-mha.json on an H200
    bench/roofline.py configs/2.5b-lrkv.json --micro-tokens 16384
    bench/roofline.py configs/128m-*.json --decode 2048 8192   decoding, one row for each kernel over the cache
    bench/roofline.py --flops 312 --bytes 2.04            TFLOP/s and TB/s of another device (an A100)
"""
import argparse
import json
import os

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FX, F32 = 2, 4  # bytes of an activation, of a statistic
# Shares of the bound's peak. Attention with mma.sync on Hopper: about 30 % forward and 26 % backward of the bf16 peak.
REACHED = {"gemm": 0.70, "memory": 0.78, "decode": 0.75, "attention": 0.30, "attention backward": 0.26, "special": 0.60}


def resolve(path):
    with open(path) as f:
        config = json.load(f)
    base = config.pop("base", None)
    merged = resolve(os.path.join(os.path.dirname(path), base)) if base else {}
    for section, values in config.items():
        if isinstance(values, dict):
            merged.setdefault(section, {}).update(values)
    return merged


class Table:
    def __init__(self, args):
        self.args, self.rows = args, []

    def add(self, name, kind, flops=0.0, nbytes=0.0, special=0.0):
        a = self.args
        times = {"compute": flops / (a.flops * 1e12), "memory": nbytes / (a.bytes * 1e12),
                 "special": special / (a.special * 1e12)}
        bound = max(times, key=times.get)
        reached = REACHED[bound if bound in REACHED and bound != "compute" else kind]
        self.rows.append((name, flops, nbytes, bound, times[bound], times[bound] / reached))


def shape_of(config):
    m, a = config["model"], config["attention"]
    s = argparse.Namespace(L=m["n_layer"], C=m["n_embd"], H=m["n_head"], type=a["type"], R=a.get("rank", 0),
                           RKV=a.get("kv_lora_rank", 0), HR=a.get("qk_rope_head_dim", 0), RQ=a.get("q_lora_rank", 0))
    s.HS = m.get("head_dim") or s.C // s.H
    s.F = m.get("ffn_dim") or 4 * s.C
    s.V = (m["vocab_size"] + 127) // 128 * 128
    s.G = {"mqa": 1, "gqa": a.get("n_kv_head", 0)}.get(s.type, s.H)
    s.R8 = (s.R + 7) // 8 * 8
    s.q, s.k, s.v, s.o = s.H * (s.HS + s.HR), s.G * (s.HS + s.HR), s.G * s.HS, s.H * s.HS  # values of a token
    s.proj = s.q + s.k + s.v
    if s.type == "lrkv":
        s.proj = s.q + 2 * (s.HS + s.H * s.R8)
    if s.type == "mla":
        s.proj = (s.RQ or s.q) + s.RKV + s.HR
    # (name, outputs, inputs, how many) of a layer's products but LRKV's own.
    s.products = [("qkv", s.proj, s.C, s.L), ("wo", s.C, s.o, s.L), ("c_fc", s.F, s.C, s.L), ("c_proj", s.C, s.F, s.L)]
    if s.type == "mla":
        s.products += [("w_uk, w_uv", 2 * s.o, s.RKV, s.L)] + ([("w_uq", s.q, s.RQ, s.L)] if s.RQ else [])
    return s


def products(t, s, N):
    for name, out, inp, layers in s.products + [("lm_head", s.V, s.C, 1)]:
        # The head's weights and their gradient pass by once for each chunk of logits (gpt/model_acts.c).
        rows = min(N, max(64, (128 << 20) // s.V // 64 * 64)) if name == "lm_head" else N
        io, w = FX * (inp + out), out * inp / rows
        t.add(f"matmul {name}", "gemm", 2.0 * out * inp * layers, (io + FX * w) * layers)
        t.add(f"matmul_dx {name}", "gemm", 2.0 * out * inp * layers, (io + FX * w) * layers)
        t.add(f"matmul_dw {name}", "gemm", 2.0 * out * inp * layers, (io + 2 * F32 * w) * layers)


def attention(t, s, T):
    qk, pv = s.q * 1.0 * T * s.L, s.o * 1.0 * T * s.L  # products with T/2 keys
    rows = s.q + s.k + s.v
    t.add("sdpa_forward", "attention", qk + pv, (FX * (rows + s.o) + F32 * s.H) * s.L)
    t.add("sdpa_backward stats", "memory", 0, (FX * 2 * s.o + 3 * F32 * s.H) * s.L)
    reads, dkv = FX * (rows + s.o) + 2 * F32 * s.H, FX * (s.k + s.v)
    if t.args.any_order:  # 5 products; the sums in fp32 are cleared before and rounded behind, the adding stays in L2
        t.add("sdpa_backward dq, dk, dv", "attention backward", 3 * qk + 2 * pv, (reads + dkv) * s.L)
        t.add("sdpa_backward rounding dq", "memory", 0, (3 * F32 + FX) * s.q * s.L)
        return
    # Scores and their gradient are computed by both kernels, so that neither needs atomics: 4 + 3 products.
    t.add("sdpa_backward dk, dv", "attention backward", 2 * qk + 2 * pv, (reads + dkv) * s.L)
    t.add("sdpa_backward dq", "attention backward", 2 * qk + pv, (reads + FX * s.q) * s.L)


def lowrank(t, s, N):
    x, z = s.H * s.HS, s.H * s.R8
    flops = 2.0 * x * s.R8 * 2 * s.L  # keys and values
    t.add("lowrank_forward k, v", "gemm", flops, 2 * FX * (s.HS + z + x) * s.L)
    # Norm and rotation of keys are undone in place; of values only the sum over heads is taken.
    t.add("lowrank_undo k, v", "memory", 0, (FX * (3 * x + s.HS) + FX * (x + s.HS)) * s.L)
    # dx is read once for both. Each block leaves its sum of db, which is written and read once more.
    tiles = s.H * ((s.R8 + 63) // 64)
    shares = min(-(-3 * t.args.sm // tiles), -(-N // 64))
    parts = 2 * F32 * shares * x * s.R8 / N
    t.add("lowrank_backward dz, db k, v", "gemm", 2 * flops, 2 * (FX * (x + 2 * z) + parts) * s.L)


def cached(s):
    """Kernels that one new token of one sequence runs over its cache in bf16, for one position of one layer:
    name, FLOPs that the tensor cores are given (rows padded to tiles), bytes."""
    heads = -(-s.H // s.G)
    heads16 = -(-s.H // 16) * 16
    if s.type == "mla" and s.HR:  # absorbed: all heads read one row of latents and rotated values
        width = s.RKV + s.HR
        return [("sdpa_mma_latent", 2.0 * heads16 * (width + s.RKV), FX * width)]
    if s.type == "mla":  # keys are rebuilt in registers; all heads are rows of one product with the values
        r = -(-s.RKV // 16) * 16
        return [("lowrank_mma_latent", s.H * (2.0 * s.HS * r + 16 * s.HS) + 2.0 * heads16 * r, FX * s.RKV)]
    if s.type == "lrkv" and s.R:  # keys are rebuilt in registers; products have 8 columns of queries
        r = -(-s.R // 16) * 16
        return [("lowrank_mma_decode", s.H * (2.0 * s.HS * r + 16 * s.HS + 16 * (s.HS + r)),
                 2 * FX * (s.HS + s.H * s.R))]
    return [("sdpa_mma_decode", 4.0 * s.G * (-(-heads // 16) * 16) * s.HS, 2 * FX * s.G * s.HS)]


def print_decode(args):
    print("| config | kernel | depth | MFLOP | MB | bound | ns | expected ns | measured ns |")
    print("|---|---|---|---|---|---|---|---|---|")
    for path in args.config:
        s = shape_of(resolve(path))
        name = os.path.basename(path)[:-5]
        for depth in args.decode:
            for kernel, flops, nbytes in cached(s):
                flops, nbytes = flops * s.L * depth, nbytes * s.L * depth
                compute, memory = flops / args.flops * 1e-3, nbytes / args.bytes * 1e-3  # ns
                expected = max(compute / REACHED["attention"], memory / REACHED["decode"])
                print(f"| {name} | {kernel} | {depth} | {flops / 1e6:.0f} | {nbytes / 1e6:.1f} | "
                      f"{'compute' if compute > memory else 'memory'} | {max(compute, memory):.0f} | {expected:.0f} | |")


def pointwise(t, s):
    norms = 2 * s.L + 1
    t.add("embed_forward, embed norm", "memory", 0, FX * s.C * 4)
    t.add("add_norm_forward", "memory", 0, (FX * 4 * s.C + F32) * norms)
    t.add("add_norm_backward", "memory", 0, (FX * 4 * s.C + F32) * norms)
    heads = s.q if s.type == "lrkv" else s.q + s.k  # lrkv's keys are turned where they are put together
    if s.type == "mla":  # latents too; heads with a decoupled part: turned, normed, and their keys put together
        heads = s.q + s.RKV + s.RQ + (s.H * s.HR + s.HR if s.HR else s.k)
        if s.HR:
            t.add("concat_heads, split_heads", "memory", 0, FX * 2 * (2 * s.k + s.HR) * s.L)
    t.add("qk_norm_rope_forward", "memory", 0, FX * 2 * heads * s.L)
    t.add("qk_norm_rope_backward", "memory", 0, FX * 3 * heads * s.L)
    t.add("act_forward (relu2)", "memory", 0, FX * 2 * s.F * s.L)
    t.add("act_backward (relu2)", "memory", 0, FX * 3 * s.F * s.L)
    # Two passes of a capped softmax: tanh is an exponential and a reciprocal.
    t.add("classifier", "memory", 0, FX * 2 * s.V, 6 * s.V)
    t.add("embed_backward", "memory", 0, FX * s.C + 2 * F32 * s.C)


def optimizer(t, s, step_tokens):
    tables = 2 * s.V * s.C
    per = 1.0 / step_tokens
    # Muon takes matrices one by one: (outputs, inputs, how many in a layer).
    shapes = [(s.RQ or s.q, s.C, 1), (s.C, s.o, 1), (s.F, s.C, 1), (s.C, s.F, 1)]
    if s.type == "lrkv":
        shapes += [(s.HS, s.C, 2), (s.H * s.R, s.C, 2), (s.HS, s.R, 2 * s.H)]
    elif s.type == "mla":
        shapes += [(s.RKV, s.C, 1), (s.o, s.RKV, 2)]
        shapes += ([(s.HR, s.C, 1)] if s.HR else []) + ([(s.q, s.RQ, 1)] if s.RQ else [])
    else:
        shapes += [(s.k, s.C, 2)]
    matrices = sum(out * inp * n * s.L for out, inp, n in shapes)
    flops = 0.0
    for out, inp, n in shapes:
        small, large = min(out, inp), max(out, inp)
        flops += 5 * n * s.L * (4.0 * small * small * large + 2.0 * small ** 3)
    t.add("muon: Newton-Schulz products", "gemm", flops * per)
    t.add("muon_momentum, muon_apply", "memory", 0, 30 * matrices * per)
    t.add("adamw: tables and head", "memory", 0, 30 * tables * per)
    t.add("grad_sumsq, clearing gradients", "memory", 0, 8 * (matrices + tables) * per)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("config", nargs="*", default=[os.path.join(ROOT, "configs", "128m-mha.json")])
    p.add_argument("--flops", type=float, default=989, help="TFLOP/s, bf16 dense")
    p.add_argument("--bytes", type=float, default=4.8, help="TB/s")
    p.add_argument("--special", type=float, default=3.86, help="T special functions/s: 16 a clock and SM")
    p.add_argument("--sm", type=int, default=132, help="multiprocessors")
    p.add_argument("--micro-tokens", type=int, default=8192)
    p.add_argument("--any-order", action="store_true", help="as with train.deterministic=false")
    p.add_argument("--decode", type=int, nargs="+", metavar="DEPTH",
                   help="instead: one new token of one of many sequences over so many cached ones")
    args = p.parse_args()
    if args.decode:
        return print_decode(args)
    if len(args.config) != 1:
        p.error("one config at a time, except with --decode")
    config = resolve(args.config[0])
    s, t = shape_of(config), Table(args)
    products(t, s, args.micro_tokens)
    attention(t, s, config["model"]["seq_len"])
    if s.type == "lrkv" and s.R:
        lowrank(t, s, args.micro_tokens)
    pointwise(t, s)
    optimizer(t, s, config["batch"]["tokens"])
    print("| kernel | MFLOP | kB | bound | ns | expected ns | measured ns |\n|---|---|---|---|---|---|---|")
    for name, flops, nbytes, bound, least, expected in t.rows:
        print(f"| {name} | {flops / 1e6:.1f} | {nbytes / 1e3:.1f} | {bound} | {least * 1e9:.1f} | {expected * 1e9:.1f} | |")
    least, expected = sum(r[4] for r in t.rows), sum(r[5] for r in t.rows)
    print(f"| **total** | {sum(r[1] for r in t.rows) / 1e6:.1f} | {sum(r[2] for r in t.rows) / 1e3:.1f} | | "
          f"{least * 1e9:.0f} | {expected * 1e9:.0f} | |")
    print(f"\nTokens/s: {1 / least:.0f} at the bound, {1 / expected:.0f} expected.")


if __name__ == "__main__":
    main()
