"""The GPT in double precision, written from the formulas alone and never from the C code.

Names, shapes and orders are those of the checkpoints; matrices are (out, in). Everything is torch
float64, gradients come from autograd. Slow on purpose: no caches, no fused steps, no options that
the configuration does not name.
"""
import math

import numpy as np
import torch

MASK = (1 << 64) - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15


# --- random numbers: a value is a pure function of (key, index)
def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def rng_key(seed, name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return mix((seed & MASK) ^ mix(h))


def rng_u64(key, n):
    """The first n draws of a stream, uint64 (n)."""
    index = np.arange(1, n + 1, dtype=np.uint64)
    x = np.uint64(key) + index * np.uint64(GOLDEN_GAMMA)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def rng_normal(key, n):
    """Standard normals, float64 (n): Box-Muller on the two halves of each draw."""
    x = rng_u64(key, n)
    u1 = ((x >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32
    u2 = ((x & np.uint64(0xFFFFFFFF)).astype(np.float64) + 0.5) * 2.0**-32
    return np.sqrt(-2.0 * np.log(u1)) * np.cos(2.0 * math.pi * u2)


# --- parameters
class Spec:
    """One tensor: initial std (or "zero", "one"), optimizer group, heads that Muon may split."""

    def __init__(self, shape, std, kind, heads=1, always_split=False):
        self.shape, self.std, self.kind = shape, std, kind
        self.heads, self.always_split = heads, always_split


def attention_specs(cfg, s):
    m, a = cfg["model"], cfg["attention"]
    C, NH, HS, t = m["n_embd"], m["n_head"], m["head_dim"], a["type"]

    def proj(rows, cols, heads=1):
        return Spec((rows, cols), m["init_std"] or 1 / math.sqrt(cols), "matrix", heads)

    def bias(n):
        return Spec((n,), "zero", "vector")

    out_width = NH * HS
    biases = {}
    if t in ("mha", "gqa", "mqa"):
        NKV = kv_heads(cfg)
        s["attn.wq"] = proj(NH * HS, C, NH)
        s["attn.wk"] = proj(NKV * HS, C, NKV)
        s["attn.wv"] = proj(NKV * HS, C, NKV)
        biases = {"bq": NH * HS, "bk": NKV * HS, "bv": NKV * HS}
    elif t == "lrkv":
        R = a["rank"]
        s["attn.wq"] = proj(NH * HS, C, NH)
        s["attn.ws_k"], s["attn.ws_v"] = proj(HS, C), proj(HS, C)
        if R:
            std_b = a["residual_init_ratio"] / math.sqrt(R)
            for x in "kv":
                s["attn.u_" + x] = proj(NH * R, C, NH)
                s["attn.b_" + x] = Spec((NH * HS, R), std_b, "matrix", NH, always_split=True)
        biases = {"bq": NH * HS, "bs_k": HS, "bs_v": HS}
    else:
        RQ, RKV, HR, HV = (a[k] for k in ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim",
                                          "v_head_dim"))
        if RQ:
            s["attn.w_dq"] = proj(RQ, C)
            s["attn.w_uq"] = proj(NH * (HS + HR), RQ, NH)
        else:
            s["attn.wq"] = proj(NH * (HS + HR), C, NH)
        s["attn.w_dkv"] = proj(RKV, C)
        if HR:
            s["attn.w_kr"] = proj(HR, C)
        s["attn.w_uk"] = proj(NH * HS, RKV, NH)
        s["attn.w_uv"] = proj(NH * HV, RKV, NH)
        biases = {"bq": NH * (HS + HR), "bk": NH * HS, "bv": NH * HV}
        out_width = NH * HV
    s["attn.wo"] = Spec((C, out_width), std_out(cfg, out_width), "matrix")
    if m["bias"]:
        for name, n in {**biases, "bo": C}.items():
            s["attn." + name] = bias(n)


def kv_heads(cfg):
    a = cfg["attention"]
    return {"mha": cfg["model"]["n_head"], "mqa": 1}.get(a["type"]) or a["n_kv_head"]


def std_out(cfg, fan_in):
    m = cfg["model"]
    if m["zero_init_proj"]:
        return "zero"
    return (m["init_std"] or 1 / math.sqrt(fan_in)) / math.sqrt(2 * m["n_layer"])


def param_specs(cfg):
    m = cfg["model"]
    C, F, V = m["n_embd"], m["ffn_dim"], m["vocab_size"]
    specs = {"wte": Spec((V, C), m["embed_std"], "embed")}
    if m["position"] == "learned":
        specs["wpe"] = Spec((m["seq_len"], C), m["embed_std"], "embed")

    def norm(s, name):
        if not m["norm_weight"]:
            return
        s[name + ".weight"] = Spec((C,), "one", "vector")
        if m["norm"] == "layernorm" and m["bias"]:
            s[name + ".bias"] = Spec((C,), "zero", "vector")

    for layer in range(m["n_layer"]):
        s = {}
        norm(s, "ln_1")
        attention_specs(cfg, s)
        norm(s, "ln_2")
        rows = 2 * F if m["activation"] == "swiglu" else F
        s["mlp.c_fc"] = Spec((rows, C), m["init_std"] or 1 / math.sqrt(C), "matrix")
        s["mlp.c_proj"] = Spec((C, F), std_out(cfg, F), "matrix")
        if m["bias"]:
            s["mlp.c_fc_bias"] = Spec((rows,), "zero", "vector")
            s["mlp.c_proj_bias"] = Spec((C,), "zero", "vector")
        specs.update({f"h.{layer}.{name}": spec for name, spec in s.items()})
    norm(specs, "ln_f")
    if not m["tied_embeddings"]:
        specs["lm_head"] = Spec((V, C), m["head_std"] or "zero", "head")
    return specs


def initial(name, spec, seed):
    """The value before training, rounded to fp32, float64 of spec.shape."""
    n = math.prod(spec.shape)
    if spec.std == "zero":
        x = np.zeros(n)
    elif spec.std == "one":
        x = np.ones(n)
    else:
        x = rng_normal(rng_key(seed, name), n) * np.float64(np.float32(spec.std))
    return torch.from_numpy(x.astype(np.float32).astype(np.float64).reshape(spec.shape))


def noised(name, spec, seed, value):
    """Zeros and ones hide faults (a gradient through a zero matrix is zero): make them noise."""
    if spec.std not in ("zero", "one"):
        return value
    noise = rng_normal(rng_key(seed, name + "#noise"), math.prod(spec.shape))
    x = 0.05 * noise if spec.std == "zero" else 1 + 0.1 * noise
    return torch.from_numpy(x.astype(np.float32).astype(np.float64).reshape(spec.shape))


# --- forward
def rms_norm(x, eps):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)


def norm(cfg, p, name, x):
    m = cfg["model"]
    if m["norm"] == "layernorm":
        x = x - x.mean(-1, keepdim=True)  # the variance is then the mean square
    y = rms_norm(x, m["norm_eps"])
    if name + ".weight" in p:
        y = y * p[name + ".weight"]
    return y + p[name + ".bias"] if name + ".bias" in p else y


def rope(x, theta):
    """Half-split rotation of the last axis of x (B, heads, T, n) by the token's position."""
    T, n = x.shape[-2:]
    inverse = theta ** (-2.0 * torch.arange(n // 2, dtype=x.dtype) / n)
    angle = torch.arange(T, dtype=x.dtype)[:, None] * inverse
    x1, x2 = x[..., :n // 2], x[..., n // 2:]
    return torch.cat((x1 * angle.cos() + x2 * angle.sin(),
                      x2 * angle.cos() - x1 * angle.sin()), -1)


def heads(x, n):
    """(B, T, n*w) -> (B, n, T, w)"""
    B, T, width = x.shape
    return x.reshape(B, T, n, width // n).transpose(1, 2)


def linear(p, x, weight, bias=None):
    y = x @ p[weight].T
    return y + p[bias] if bias in p else y


def queries_keys_values(cfg, p, pre, x):
    """q, k (B, NH, T, key width), v (B, NH, T, HV), rotated and normed."""
    m, a = cfg["model"], cfg["attention"]
    NH, HS, eps = m["n_head"], m["head_dim"], m["norm_eps"]
    rotate = (lambda t: rope(t, m["rope_theta"])) if m["position"] == "rope" else (lambda t: t)
    qk_norm = (lambda t: rms_norm(t, eps)) if m["qk_norm"] else (lambda t: t)

    def lin(weight, bias=""):
        return linear(p, x, pre + weight, pre + bias)

    if a["type"] == "mla":
        HR = a["qk_rope_head_dim"]
        if a["q_lora_rank"]:
            q = linear(p, rms_norm(lin("w_dq"), eps), pre + "w_uq", pre + "bq")
        else:
            q = lin("wq", "bq")
        q = heads(q, NH)
        c = rms_norm(lin("w_dkv"), eps)
        k = heads(linear(p, c, pre + "w_uk", pre + "bk"), NH)
        v = heads(linear(p, c, pre + "w_uv", pre + "bv"), NH)
        if not HR:
            return qk_norm(rotate(q)), qk_norm(rotate(k)), v
        q = qk_norm(torch.cat((q[..., :HS], rotate(q[..., HS:])), -1))
        k_shared = rotate(qk_norm(lin("w_kr")).unsqueeze(1))
        return q, torch.cat((k, k_shared.expand(-1, NH, -1, -1)), -1), v

    q = heads(lin("wq", "bq"), NH)
    if a["type"] == "lrkv":
        kv = []
        for which in "kv":
            y = lin("ws_" + which, "bs_" + which).unsqueeze(1).expand(-1, NH, -1, -1)
            if a["rank"]:
                r = heads(lin("u_" + which), NH)
                B = p[pre + "b_" + which].reshape(NH, HS, a["rank"])
                y = y + torch.einsum("bhtr,hdr->bhtd", r, B)
            kv.append(y)
        k, v = kv
    else:
        NKV = kv_heads(cfg)
        k, v = (heads(lin("w" + w, "b" + w), NKV).repeat_interleave(NH // NKV, 1) for w in "kv")
    return qk_norm(rotate(q)), qk_norm(rotate(k)), v


def attention(cfg, p, pre, x):
    q, k, v = queries_keys_values(cfg, p, pre, x)
    B, NH, T, width = q.shape
    scores = q @ k.transpose(-1, -2) / math.sqrt(width)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    y = scores.masked_fill(future, -math.inf).softmax(-1) @ v
    return linear(p, y.transpose(1, 2).reshape(B, T, -1), pre + "wo", pre + "bo")


def mlp(cfg, p, pre, x):
    h = linear(p, x, pre + "c_fc", pre + "c_fc_bias")
    kind = cfg["model"]["activation"]
    if kind == "gelu":
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    elif kind == "relu2":
        h = torch.relu(h).square()
    else:
        gate, up = h.chunk(2, -1)
        h = gate * torch.sigmoid(gate) * up
    return linear(p, h, pre + "c_proj", pre + "c_proj_bias")


def logits(cfg, p, ids):
    """(B, T, V) of ids (B, T)."""
    m = cfg["model"]
    x = p["wte"][ids]
    if "wpe" in p:
        x = x + p["wpe"][:ids.shape[1]]
    if m["embed_norm"]:
        x = norm(cfg, {}, "", x)
    for layer in range(m["n_layer"]):
        pre = f"h.{layer}."
        x = x + attention(cfg, p, pre + "attn.", norm(cfg, p, pre + "ln_1", x))
        x = x + mlp(cfg, p, pre + "mlp.", norm(cfg, p, pre + "ln_2", x))
    out = norm(cfg, p, "ln_f", x) @ p["wte" if m["tied_embeddings"] else "lm_head"].T
    cap = m["logit_softcap"]
    return cap * torch.tanh(out / cap) if cap else out


def losses(out, targets):
    """Nats per position (B*T), 0 where the target is -1."""
    return torch.nn.functional.cross_entropy(out.flatten(0, 1), targets.flatten(),
                                             ignore_index=-1, reduction="none")
