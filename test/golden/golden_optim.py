"""AdamW and Muon in double precision, from the formulas alone; the state is a dict of dicts."""
import math

import torch

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(x, steps):
    """Newton-Schulz on one matrix, towards U V^T of its singular value decomposition."""
    a, b, c = NEWTON_SCHULZ
    flip = x.shape[0] > x.shape[1]
    x = x.T if flip else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if flip else x


def muon_update(u, spec, o):
    """The step direction of one tensor: each unit alone, scaled by its own aspect."""
    split = spec.always_split or o["muon_unit"] == "head"
    units = u.chunk(spec.heads) if split else (u,)
    out = []
    for unit in units:
        rows, cols = unit.shape
        out.append(orthogonalise(unit, o["muon_steps"]) * math.sqrt(max(1.0, rows / cols)))
    return torch.cat(out)


def step(p, grads, specs, cfg, state, index, lr_factor):
    """One optimizer step, in place; index counts from 0. Returns the norm before clipping."""
    o = cfg["optim"]
    total = math.sqrt(sum(float(g.square().sum()) for g in grads.values()))
    clip = min(1.0, o["grad_clip"] / total) if o["grad_clip"] else 1.0
    width = (cfg["model"]["n_embd"] / 768) ** -0.5 if o["lr_width_scale"] else 1.0
    for name, value in p.items():
        spec, g = specs[name], grads[name] * clip
        group = o[spec.kind]
        lr = group["lr"] * lr_factor
        s = state.setdefault(name, {"m": torch.zeros_like(g), "v": torch.zeros_like(g)})
        if group["optimizer"] == "muon":
            mu = o["muon_momentum"]
            s["m"] = mu * s["m"] + (1 - mu) * g
            u = (1 - mu) * g + mu * s["m"] if o["muon_nesterov"] else s["m"]
            update = muon_update(u, spec, o)
        else:
            lr *= width
            b1, b2 = group["beta1"], group["beta2"]
            s["m"] = b1 * s["m"] + (1 - b1) * g
            s["v"] = b2 * s["v"] + (1 - b2) * g * g
            t = index + 1
            update = s["m"] / (1 - b1**t) / (torch.sqrt(s["v"] / (1 - b2**t)) + group["eps"])
        with torch.no_grad():
            value -= lr * (group["decay"] * value + update)
    return total
