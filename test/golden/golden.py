#!/usr/bin/env python3
"""Writes fixtures/NAME.json: what the mathematics says about small models, for test_golden.c.

    golden.py [NAME...]      writes all fixtures, or those named
    golden.py --fp32         writes nothing; prints how far plain fp32 lands from fp64 on each

A fixture holds its config, the losses of 10 optimizer steps and, for every tensor, a norm and two
random projections of its initial value, of its gradient at the first step and of its change over
the 10 steps. README.md describes the fields.
"""
import copy
import json
import pathlib
import sys

import torch

import golden_model as model
import golden_optim as optim

HERE = pathlib.Path(__file__).resolve().parent
N_STEPS, B, T, SEED = 10, 3, 24, 1234


# An element whose first gradient is no larger than its rounding noise takes a full Adam step in
# either direction; eps lies above the noise and below the gradients.
def adamw(lr, beta1=0.9, beta2=0.95, eps=1e-6, decay=0.0):
    return {"optimizer": "adamw", "lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps,
            "decay": decay}


def muon(lr, decay=0.0):
    return {**adamw(lr, decay=decay), "optimizer": "muon"}


SIZES = {"n_layer": 2, "n_embd": 48, "n_head": 4, "head_dim": 12, "ffn_dim": 80, "vocab_size": 97,
         "seq_len": 32}
MODERN = {
    "model": {**SIZES, "norm": "rmsnorm", "norm_weight": False, "embed_norm": True,
              "position": "rope", "rope_theta": 10000.0, "norm_eps": 1e-6, "qk_norm": True,
              "activation": "relu2", "bias": False, "tied_embeddings": False,
              "logit_softcap": 15.0, "init_std": 0.0, "embed_std": 1.0, "head_std": 0.0,
              "zero_init_proj": True},
    "optim": {"embed": adamw(0.01), "head": adamw(0.004, decay=0.1), "matrix": muon(0.02),
              "vector": adamw(0.01), "muon_momentum": 0.95, "muon_nesterov": True,
              "muon_steps": 5, "muon_unit": "matrix", "lr_width_scale": True, "grad_clip": 1.0},
}
# Without rotation a key bias cannot change the softmax: its gradient is rounding noise, which Adam
# would blow up to full steps. The eps of vectors is far above that noise.
GPT2 = {
    "model": {**SIZES, "norm": "layernorm", "norm_weight": True, "embed_norm": False,
              "position": "learned", "rope_theta": 10000.0, "norm_eps": 1e-5, "qk_norm": False,
              "activation": "gelu", "bias": True, "tied_embeddings": True, "logit_softcap": 0.0,
              "init_std": 0.1, "embed_std": 0.1, "head_std": 0.1, "zero_init_proj": False},
    "optim": {"embed": adamw(0.003, decay=0.1), "head": adamw(0.003),
              "matrix": adamw(0.004, beta2=0.99, decay=0.1), "vector": adamw(0.002, eps=1e-3),
              "muon_momentum": 0.95, "muon_nesterov": True, "muon_steps": 5,
              "muon_unit": "matrix", "lr_width_scale": False, "grad_clip": 1.0},
}
ATTENTION = {
    "mha": {"type": "mha"},
    "gqa": {"type": "gqa", "n_kv_head": 2},
    "mqa": {"type": "mqa"},
    "mla": {"type": "mla", "kv_lora_rank": 20, "q_lora_rank": 0, "qk_rope_head_dim": 0,
            "v_head_dim": 12},
    "lrkv": {"type": "lrkv", "rank": 5, "residual_init_ratio": 0.1},
}
WIDE = {"model.n_embd": 56, "model.head_dim": 16}  # 4 * 16 is not 56
HEAD_UNITS = {"optim.muon_unit": "head"}
# name: recipe, attention, what differs
CASES = {f"{a}-{r}": (recipe, a, {})
         for r, recipe in (("modern", MODERN), ("gpt2", GPT2)) for a in ATTENTION}
CASES |= {
    "mla-decoupled": (MODERN, "mla", {"attention.qk_rope_head_dim": 6, "attention.v_head_dim": 14,
                                      **WIDE}),
    "mla-decoupled-bias": (GPT2, "mla", {
        "attention.qk_rope_head_dim": 8, "attention.q_lora_rank": 28, "model.position": "rope",
        "model.norm": "rmsnorm"}),
    "mla-q-lora-swiglu-heads": (MODERN, "mla", {
        "attention.q_lora_rank": 28, "attention.v_head_dim": 10, "model.activation": "swiglu",
        "optim.muon_nesterov": False, **HEAD_UNITS}),
    "lrkv-swiglu-bias-heads": (MODERN, "lrkv", {
        "model.activation": "swiglu", "model.bias": True, "model.norm_weight": True,
        "attention.rank": 9, "attention.residual_init_ratio": 0.7, "optim.matrix.decay": 0.1,
        **WIDE, **HEAD_UNITS}),
    "lrkv-no-position": (GPT2, "lrkv", {
        "model.position": "none", "model.tied_embeddings": False, "model.init_std": 0.0,
        "attention.residual_init_ratio": 1.0, "optim.grad_clip": 0.0}),
    "lrkv-rank-0": (MODERN, "lrkv", {"attention.rank": 0, "optim.grad_clip": 0.5}),
    "gqa-tied-softcap-heads": (MODERN, "gqa", {
        "model.tied_embeddings": True, "model.logit_softcap": 4.0, "model.embed_norm": False,
        "model.embed_std": 0.2, "model.rope_theta": 100.0, "optim.muon_steps": 3, **WIDE,
        **HEAD_UNITS}),
    "mha-layernorm-no-weight": (MODERN, "mha", {
        "model.norm": "layernorm", "model.position": "none", "model.head_std": 0.1,
        "model.zero_init_proj": False,
        # Input without a mean leaves every matrix gradient singular, and Muon would blow up the
        # rounding noise in that direction.
        "optim.matrix": adamw(0.002)}),
}


def config_of(name):
    recipe, kind, changes = CASES[name]
    cfg = copy.deepcopy(recipe)
    cfg["attention"] = dict(ATTENTION[kind])
    for key, value in changes.items():
        *sections, field = key.split(".")
        place = cfg
        for section in sections:
            place = place[section]
        place[field] = value
    if cfg["model"]["position"] != "rope":
        del cfg["model"]["rope_theta"]
    return cfg


def batch(cfg, step):
    """ids, targets (B, T); about one target in eight is -1. Every sequence has T + 1 random ids."""
    V = cfg["model"]["vocab_size"]
    key = model.rng_key(SEED, f"batch#{step}")
    ids = (model.rng_u64(key, B * (T + 1)) % V).astype("int64").reshape(B, T + 1)
    hide = model.rng_u64(model.rng_key(SEED, f"hide#{step}"), B * T).reshape(B, T) % 8 == 0
    targets = ids[:, 1:].copy()
    targets[hide] = -1
    return torch.from_numpy(ids[:, :-1].copy()), torch.from_numpy(targets)


def sketch(name, x):
    """[norm, projection, projection] of a tensor: an error e moves each projection by about |e|."""
    x = x.detach().double().flatten()
    out = [float(x.norm())]
    for i in range(2):
        direction = model.rng_normal(model.rng_key(7, f"{name}#proj{i}"), x.numel())
        out.append(float(x @ torch.from_numpy(direction)))
    return out


def run(cfg, dtype=torch.float64):
    """Everything that a fixture holds, in the given precision."""
    specs = model.param_specs(cfg)
    out = {"tensors": {name: {} for name in specs}, "losses": [], "grad_norm": 0.0}
    p, start = {}, {}
    for name, spec in specs.items():
        value = model.initial(name, spec, SEED)
        out["tensors"][name]["initial"] = sketch(name, value)
        start[name] = model.noised(name, spec, SEED, value)
        p[name] = start[name].to(dtype).clone().requires_grad_(True)
    state = {}
    for step in range(N_STEPS):
        ids, targets = batch(cfg, step)
        logits = model.logits(cfg, p, ids)
        nats = model.losses(logits, targets)
        loss = nats.sum() / int((targets != -1).sum())
        grads = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
        out["losses"].append(float(loss))
        norm = optim.step(p, grads, specs, cfg, state, step, lr_factor(step))
        if step == 0:
            out["grad_norm"] = norm
            out["logits"], out["nats"] = sketch("logits", logits), sketch("nats", nats)
            for name, g in grads.items():
                out["tensors"][name]["gradient"] = sketch(name, g)
    for name, value in p.items():
        out["tensors"][name]["change"] = sketch(name, value.detach().double() - start[name])
    return out


def lr_factor(step):
    return 1 - step / 20


def dump(name, cfg, result):
    """Numbers with 10 digits, one tensor a line."""
    def numbers(values):
        return "[" + ",".join(f"{v:.10g}" for v in values) + "]"

    lines = [f'"config":{json.dumps(cfg, separators=(",", ":"))}',
             f'"seed":{SEED},"B":{B},"T":{T}',
             f'"lr_factor":{numbers(map(lr_factor, range(N_STEPS)))}']
    lines += [f'"{key}":{numbers(result[key])}' for key in ("losses", "logits", "nats")]
    lines.append(f'"grad_norm":{result["grad_norm"]:.10g}')
    tensors = [f'"{key}":' + numbers(t["initial"] + t["gradient"] + t["change"])
               for key, t in result["tensors"].items()]
    lines.append('"tensors":{\n' + ",\n".join(tensors) + "}")
    (HERE / "fixtures" / f"{name}.json").write_text("{" + ",\n".join(lines) + "}\n")


def compare(name, cfg):
    """fp32 against fp64: the worst share of the norms, what tolerances must leave room for."""
    def worst(part, floor):
        ratios = []
        for key, t in a["tensors"].items():
            off = max(abs(u - v) for u, v in zip(t[part], b["tensors"][key][part]))
            ratios.append((off / (t[part][0] + floor(t)), key))
        return "%.1e %s" % max(ratios)

    a, b = run(cfg), run(cfg, torch.float32)
    off = max(abs(u / v - 1) for u, v in zip(a["losses"], b["losses"]))
    gradient = worst("gradient", lambda t: 1e-2 * a["grad_norm"])
    change = worst("change", lambda t: 1e-1 * t["initial"][0] + 1e-2)
    print(f"{name:24} loss {a['losses'][0]:.3f} .. {a['losses'][-1]:.3f}, off {off:.1e}; |g| "
          f"{a['grad_norm']:.2f}; gradient off {gradient}; change off {change}", flush=True)


def main(args):
    torch.manual_seed(0)
    names = [a for a in args if not a.startswith("-")] or list(CASES)
    for name in names:
        cfg = config_of(name)
        if "--fp32" in args:
            compare(name, cfg)
        else:
            dump(name, cfg, run(cfg))


if __name__ == "__main__":
    main(sys.argv[1:])
