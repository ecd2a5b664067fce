"""A winnow model in PyTorch, for Hugging Face transformers: AutoModelForCausalLM.from_pretrained(folder,
trust_remote_code=True). Written by `winnow convert --to hf`; winnow's docs/mechanisms.md has the equations and the papers.

For query row i, key column j <= i, head h with key-value group g(h):
    L[h,i,j] = scale * q[h,i] . (k[g,j] + p[i-j]) + b[h,i-j], then score maps (alibi, gates of keys, softcap)
    S[i,j]   = strength * relu(L[0,i,j]) where the rules allow it;  F[i,j] = sum over rows k < i of S[k,j]
    A[h,i,j] = L[h,i,j] - F[i,j] + log m_h(i-j), -inf where a rule hides the key or it has been evicted
    W = softmax_j(A) (sinks beside the keys), then threshold and dropout;  y[h,i] = sum_j W[h,i,j] v[g,j]
    z[h,i] = y[h,i] - gate (y.v/|v|^2) v with v = v[g,i]

The cache holds keys, values, their positions and gates, F and what a policy notes of each token. With budgets a layer holds at
most K tokens: when the next one comes, the policy's choice is overwritten. Plain PyTorch: a row's logits exist, so
memory grows with the square of the text; winnow itself does not need that."""

import math

import torch
from torch import nn
from torch.nn import functional as fn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_winnow import WinnowConfig

POLICIES = ("selective", "tova", "h2o", "streaming", "window", "gates")
GATES = ("forget", "write", "fade")  # a number of each key and key-value head: the log of a gate, of forget's the running sum
SERVED = {"scale", "dropout", "bidirectional", "selective", "span", "relative", "buckets", "alibi", "softcap", "window",
          "window_layers", "strided", "sqrt", "sinks", "off_by_one", "exclusive", "threshold", *GATES}


def has_layer(pattern, layer):
    """Is a pattern over the layers ("1110"; empty: all) on for this layer?"""
    return not pattern or pattern[layer % len(pattern)] == "1"


def switched_on(attention, name):
    """A mechanism's object, or None where it is off."""
    value = attention.get(name)
    if value is True:
        return {}
    return value if isinstance(value, dict) and value.get("enabled", True) else None


# ---- budgets ----

class Budgets:
    """How many tokens each layer may hold, and the policy that evicts."""

    def __init__(self, model, budgets, policy, options):
        layers, attention = model.own["layers"], model.own.get("attention", {})
        if isinstance(budgets, str):
            budgets = [int(part) for part in budgets.split(",")]
        if isinstance(budgets, (list, tuple)) and len(budgets) == 1:
            budgets = budgets[0]
        tokens = list(budgets) if isinstance(budgets, (list, tuple)) else [budgets] * layers
        if len(tokens) != layers or any(isinstance(k, bool) or not isinstance(k, int) or k < 1 for k in tokens):
            raise ValueError(f"budgets={budgets!r}: a number of tokens, or one for each of {layers} layers, at least 1")
        self.tokens = tokens
        self.selections = model.layers[0].attn.selections
        self.policy = policy or ("selective" if self.selections else "tova")
        if self.policy not in POLICIES:
            raise ValueError(f"policy={policy!r}: {', '.join(POLICIES)} are known here")
        if self.policy == "selective" and not self.selections:
            raise ValueError("policy='selective' needs a model with selective attention")
        if self.policy == "gates" and not model.layers[0].attn.gates:
            raise ValueError(f"policy='gates' needs a model with {', '.join(GATES)}")
        options = dict(options or {})
        self.sinks, self.recent = int(options.pop("sinks", 4)), float(options.pop("recent", 0.5))
        per_kv_head = bool(options.pop("per_kv_head", False))
        if options:
            raise ValueError(f"policy_options: unknown {', '.join(map(repr, options))}; sinks, recent, per_kv_head are known")
        self.sums = self.policy in ("tova", "h2o")
        heads = model.own["kv_heads"]
        apart = per_kv_head and (self.sums or self.policy == "gates")
        self.groups = self.selections if self.policy == "selective" else heads if apart else 1
        if self.policy != "selective" and self.groups > 1 and self.selections == 1:
            raise ValueError(f"policy={self.policy!r} with per_kv_head does not go with one selection for all heads")

    def key(self):
        return (tuple(self.tokens), self.policy, self.groups, self.sinks, self.recent)

    def choose(self, layer, at, row, F, notes, left):
        """The slot of the token that is evicted. at, F, notes, left [B,P,K]; row [B] the new token's position. left: the log
        of what gates leave of each token's weight."""
        K = self.tokens[layer]
        sinks = min(1, K - 1) if self.policy == "selective" else min(self.sinks, K - 1) if self.policy == "streaming" else 0
        recent = math.floor(self.recent * K) if self.policy == "h2o" else 0
        score = (F if self.policy == "selective" else -notes if self.sums else -left if self.policy == "gates" else
                 torch.zeros_like(at, dtype=torch.float32))
        score = score.masked_fill((at < sinks) | (at > row[:, None, None] - recent), -math.inf)
        top = score.amax(-1, keepdim=True)
        far = torch.iinfo(at.dtype).max // 4
        oldest = torch.where((score == top) & (top > -math.inf), at, far).argmin(-1)
        spare = torch.where(at < sinks, at + far, at).argmin(-1)  # all are protected
        return torch.where(top.squeeze(-1) > -math.inf, oldest, spare)


class LayerCache:
    """What one layer holds, by slot: k, v [B,Hkv,N,D], at [B,P,N] (positions, -1: none), F [B,G,N], sk [B,G,N,D], notes
    [B,P,N], numbers of gates [B,Hkv,N]; and `forgotten` [B,Hkv,1], forget's running sum."""

    def __init__(self):
        self.tensors = {}

    def __getattr__(self, name):
        return self.__dict__["tensors"].get(name)

    @property
    def slots(self):
        return self.at.shape[-1] if self.at is not None else 0


class WinnowCache(Cache):
    """Keys, values, positions and F of every layer, and the number of tokens seen (which budgets do not bound)."""

    is_compileable = False

    def __init__(self, layers):
        super().__init__(layers=[LayerCache() for _ in range(layers)])
        self.seen, self.budgets = 0, None

    def get_seq_length(self, layer_idx=0):
        return self.seen

    def get_max_cache_shape(self, layer_idx=0):
        return -1

    def get_mask_sizes(self, query_length, layer_idx=0):
        return self.seen + query_length, 0

    @property
    def is_initialized(self):
        return self.seen > 0

    def held(self, layer):
        """Tokens that a layer holds, by sequence and group of heads, [B,P]."""
        return (self.layers[layer].at >= 0).sum(-1)

    def reset(self):
        self.seen = 0
        for layer in self.layers:
            layer.tensors = {}

    def _take(self, how):
        for layer in self.layers:
            layer.tensors = {name: None if x is None else how(x) for name, x in layer.tensors.items()}

    def reorder_cache(self, beam_idx):
        self._take(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats):
        self._take(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices):
        self._take(lambda x: x[indices])

    def crop(self, *args, **kwargs):
        raise NotImplementedError("a winnow cache cannot give tokens back: F and evictions do not go backwards")


# ---- layers ----

class Norm(nn.Module):
    def __init__(self, own, size, shift):
        super().__init__()
        self.layer, self.eps = own["norm"] == "layernorm", own["norm_eps"]
        self.gain = nn.Parameter(torch.ones(size))
        self.shift = nn.Parameter(torch.zeros(size)) if shift and self.layer else None

    def forward(self, x):
        y = x.float()
        if self.layer:
            y = y - y.mean(-1, keepdim=True)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * self.gain.float()
        return (y if self.shift is None else y + self.shift.float()).to(x.dtype)


def rotary_frequencies(own, local, factors):
    """Radians per position for each pair, and the factor on cos and sin."""
    R = own.get("rope_size") or own["head_size"]
    scaling = own.get("rope_scaling", {})
    kind, s = scaling.get("type", "none"), scaling.get("factor", 1)
    N, P, theta = scaling.get("context") or own["context"], own["context"], own["rope_theta"]
    if local:
        return torch.tensor([own["rope_local_theta"] ** (-2 * i / R) for i in range(R // 2)], dtype=torch.float64), 1.0
    if kind == "dynamic" and P > N:
        theta *= (s * P / N - (s - 1)) ** (R / (R - 2))
    out, magnitude = [], 1.0
    for i in range(R // 2):
        f = theta ** (-2 * i / R)
        if kind == "linear":
            f /= s
        elif kind == "llama3":
            turns, low, high = N * f / (2 * math.pi), scaling["low_freq_factor"], scaling["high_freq_factor"]
            t = min(max((turns - low) / (high - low), 0), 1)
            f = (1 - t) * f / s + t * f
        elif kind == "yarn":
            dimension = lambda n: R * math.log(N / (n * 2 * math.pi)) / (2 * math.log(theta))
            low, high = dimension(scaling["beta_fast"]), dimension(scaling["beta_slow"])
            if scaling.get("truncate", True):
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, R - 1)
            r = min(max((i - low) / ((high - low) or 0.001), 0), 1)
            f = f / s * r + f * (1 - r)
        out.append(f)
    if kind == "yarn":
        magnitude = scaling.get("attention_factor") or (1 + 0.1 * math.log(s) if s > 1 else 1.0)
    out = torch.tensor(out, dtype=torch.float64)
    if factors is not None:
        out = out / factors.double().cpu()
    return out, magnitude


def rotate(x, at, frequencies, magnitude, adjacent):
    """x [B,heads,T,D], at [B,T]. Angles in double, as winnow has them."""
    angle = at.clamp(min=0).double()[:, None, :, None] * frequencies.to(x.device)
    cos, sin = (magnitude * angle.cos()).float(), (magnitude * angle.sin()).float()
    n = frequencies.shape[0]
    turned, rest = x[..., :2 * n].float(), x[..., 2 * n:]
    if adjacent:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turned[..., :n], turned[..., n:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


class Attention(nn.Module):
    def __init__(self, own, layer):
        super().__init__()
        a = own.get("attention", {})
        C, D, H, Hkv, bias = own["width"], own["head_size"], own["heads"], own["kv_heads"], own.get("bias", False)
        self.layer, self.own, self.a = layer, own, a
        self.H, self.Hkv, self.D = H, Hkv, D
        self.scale = a.get("scale") or 1 / math.sqrt(D)
        self.windowed = a.get("window", 0) > 0 and has_layer(a.get("window_layers", ""), layer)
        self.window = a["window"] if self.windowed else 0
        self.strided, self.dropout = a.get("strided", 0), a.get("dropout", 0)
        self.root, self.span_terms = switched_on(a, "sqrt"), switched_on(a, "span")
        self.select, self.threshold = switched_on(a, "selective"), switched_on(a, "threshold")
        self.relative, self.buckets = switched_on(a, "relative"), switched_on(a, "buckets")
        self.alibi, self.cap = switched_on(a, "alibi"), (a.get("softcap") or {}).get("cap", 0)
        exclusive = switched_on(a, "exclusive")
        self.exclusive = exclusive is not None and has_layer(exclusive.get("layers", ""), layer)
        self.off_by_one, self.sinks = switched_on(a, "off_by_one") is not None, a.get("sinks", 0)
        self.selections = 0 if self.select is None else Hkv if self.select.get("per_kv_head") else 1
        G = self.selections

        self.qkv = nn.Linear(C, (H + 2 * Hkv) * D, bias=bias or own.get("qkv_bias", False))
        self.out = nn.Linear(H * D, C, bias=bias or own.get("out_bias", False))
        if own.get("qk_norm"):
            self.q_norm, self.k_norm = Norm(own, D, False), Norm(own, D, False)
        if G and self.select.get("bilinear"):
            self.select_q, self.select_k = nn.Linear(C, G * D, bias=False), nn.Linear(C, G * D, bias=False)
        if G and self.select.get("strength", "fixed") != "fixed":
            self.select_strength = nn.Parameter(torch.zeros(G))
        if self.span_terms is not None:
            self.span = (nn.Linear(C, H) if self.span_terms.get("dynamic") else
                         nn.Parameter(torch.full((H,), float(self.span_terms.get("init", 0)))))
        self.gates = {name: switched_on(a, name) for name in GATES if switched_on(a, name) is not None}
        for name, keys in self.gates.items():
            hidden, gate = keys.get("hidden", 0), nn.Linear(keys.get("hidden") or C, H if keys.get("per_query_head") else Hkv)
            if keys.get("keys"):  # a network of each head's on its keys
                gate.key = nn.ParameterDict({"gain": nn.Parameter(torch.ones(2 * D))})
            if hidden:
                gate.hidden = nn.Linear(2 * D, Hkv * hidden) if keys.get("keys") else nn.Linear(C, hidden)
            self.add_module(name, gate)
        if self.sinks:
            self.sink_k, self.sink_v = (nn.Parameter(torch.zeros(Hkv, self.sinks, D)) for _ in range(2))
        if exclusive is not None and exclusive.get("gate"):
            self.exclusive_gate = nn.Parameter(torch.full((H,), float(exclusive.get("gate_init", 1))))

    def sees(self, x):
        """The keep rules: does a row see the key x >= 0 tokens before it?"""
        keep = x >= 0
        if self.window:
            keep = keep & (x < self.window)
        if self.strided:
            keep = keep & ((x < self.strided) | (x % self.strided == 0))
        if self.root is not None:
            buffer, density = self.root.get("buffer", 64), self.root.get("density", 1)
            d = (x - buffer + 1).clamp(min=0)
            near = (density * d.double().sqrt()).long()
            square = torch.zeros_like(keep)
            for m in (near - 1, near, near + 1, near + 2):
                square = square | ((m >= 1) & (((m / density) ** 2).long() == d))
            keep = keep & ((x < buffer) | square)
        if self.span_terms is not None and self.span_terms.get("exclude_self"):
            keep = keep & (x != 0)
        return keep

    def of_keys(self, gate, k):
        """[B,T,Hkv]: logits of gates from the keys before rotation and after it, [B,Hkv,T,D] each."""
        norms = torch.cat([x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) for x in k], -1) * gate.key["gain"]
        hidden = torch.einsum("bhti,hji->bthj", norms, gate.hidden.weight.unflatten(0, (self.Hkv, -1)))
        return (fn.gelu(hidden + gate.hidden.bias.unflatten(0, (self.Hkv, -1))) * gate.weight).sum(-1) + gate.bias

    def numbers(self, x, k, at, cache):
        """{gate: [B,Hkv,T]}: the numbers of these tokens' keys; [B,H,T] where each query head has a gate."""
        out = {}
        for name, keys in self.gates.items():
            gate = getattr(self, name)
            logits = (self.of_keys(gate, k) if keys.get("keys") else
                      gate(fn.silu(gate.hidden(x)) if hasattr(gate, "hidden") else x)).float()
            if self.training and keys.get("noise"):
                logits = logits + torch.rand_like(logits).logit(1e-7)
            logs = fn.logsigmoid(logits / keys.get("temperature", 1))
            if keys.get("floor"):
                logs = logs.clamp(min=math.log(keys["floor"]))
            out[name] = torch.where(at[:, None] >= 0, logs.transpose(1, 2), 0)
        if "forget" in out:
            sums = out["forget"].double().cumsum(-1)
            if cache is not None:
                sums = sums if cache.forgotten is None else sums + cache.forgotten
                cache.tensors["forgotten"] = sums[..., -1:]
            out["forget"] = sums
        return out

    def gates_left(self, name, x, row, key):
        """The log of the factor that a gate puts on a key's weight (of fade: on its logit), x >= 0 tokens later."""
        if name == "forget":
            return (row - key).float()
        return torch.where(x >= self.gates[name].get("window", 128), key, 0) if name == "write" else x.clamp(min=0) * key

    def left(self, row, cache, groups):
        """[B,P,N]: what all gates leave of the tokens that are held, for a row [B]; forget's without the row's own sum."""
        at = cache.at.repeat_interleave(self.Hkv // cache.at.shape[1], 1)
        of_heads = lambda n: n.double().unflatten(1, (self.Hkv, -1)).mean(2)
        each = [self.gates_left(name, row[:, None, None] - at, 0, of_heads(cache.tensors[name])) for name in self.gates]
        return sum(each).double().unflatten(1, (groups, -1)).sum(2)

    def logits(self, q, k, x, tables, of_rows, of_keys):
        """[B,H,T,N] in float32, before selections and masks. x [B,P,T,N]: distances; of_rows {gate: [B,Hkv,T]}, of_keys
        {gate: [B,Hkv,N]}."""
        H, ratio = self.H, self.H // self.Hkv
        L = torch.matmul(q.unflatten(1, (self.Hkv, ratio)), k.unsqueeze(2).transpose(-1, -2)).flatten(1, 2).float()
        far = x.clamp(min=0)
        spread = lambda t: t.repeat_interleave(H // t.shape[1], 1)
        if self.relative is not None:
            p = tables["relative"]
            qp = torch.matmul(q, p.transpose(0, 1).to(q.dtype)).float()
            known = spread(far).clamp(max=p.shape[0] - 1)
            L = L + torch.where(spread(far) < p.shape[0], qp.gather(-1, known), 0)
        L = L * self.scale
        if self.buckets is not None:
            n, farthest = self.buckets.get("count", 32), self.buckets.get("farthest", 128)
            exact = n // 2
            part = (far.clamp(min=exact).double() / exact).log() / math.log(farthest / exact)
            bucket = torch.where(far < exact, far, (exact + (part * (n - exact) * (1 + 1e-12) + 1e-12).long()).clamp(max=n - 1))
            bias = tables["buckets"].float().transpose(0, 1)  # [H,n]
            L = L + bias[torch.arange(H, device=x.device)[None, :, None, None], spread(bucket)]
        if self.alibi is not None:
            n = 1 << (H.bit_length() - 1)
            b = self.alibi.get("max_bias", 8)
            slope = [2 ** (-b * (h + 1) / n) if h < n else 2 ** (-b * (2 * (h - n) + 1) / (2 * n)) for h in range(H)]
            L = L - torch.tensor(slope, device=x.device)[None, :, None, None] * spread(far).float()
        for name, keys in self.gates.items():
            if keys.get("training_only") and not self.training:
                continue
            left = spread(self.gates_left(name, x, of_rows[name][..., None], of_keys[name][:, :, None]))
            L = L * left.exp() if name == "fade" else L + left
        if self.cap:
            L = self.cap * torch.tanh(L / self.cap)
        return L

    def selected(self, L, sq, sk, x, at_q, at_k):
        """S [B,G,T,N]: what each row selects."""
        G, s = self.selections, self.select
        if s.get("bilinear"):
            base = self.scale * torch.matmul(sq, sk.transpose(-1, -2)).float()
        else:
            base = L[:, [g * (self.H // G) + s.get("head", 0) for g in range(G)]]
        may = (x >= 0) & (at_q >= 0)[:, None, :, None] & (at_k >= 0)[:, :, None, :]
        if s.get("protect_self", True):
            may = may & (x != 0)
        if s.get("protect_first", True):
            may = may & (at_k != 0)[:, :, None, :]
        if s.get("relu", True):
            base = base.relu()
        if hasattr(self, "select_strength"):
            base = base * self.select_strength.float()[None, :, None, None]
        return torch.where(may, base, 0)

    def thresholded(self, W, at_k):
        """The fewest keys whose weights reach tau of the row's, heaviest first, ties to the oldest. W [B,H,T,N]."""
        with torch.no_grad():
            age = at_k.argsort(stable=True, dim=-1).repeat_interleave(self.H // at_k.shape[1], 1)[:, :, None].expand_as(W)
            ranked, order = W.gather(-1, age).sort(stable=True, dim=-1, descending=True)
            before = ranked.double().cumsum(-1) - ranked.double()
            keep = (before < self.threshold.get("tau", 0.95) * ranked.double().sum(-1, keepdim=True)) & (ranked > 0)
            kept = torch.zeros_like(keep).scatter(-1, age.gather(-1, order), keep)
        return torch.where(kept, W, 0)

    def attend(self, q, k, v, own_v, at_q, at_k, F, sq, sk, z, tables, of_rows, of_keys):
        """Rows over columns: q [B,H,T,D], k, v [B,Hkv,N,D], at_q [B,T], at_k [B,P,N], F [B,G,N], of_rows and of_keys as
        logits has them. Returns y [B,H,T,D], the weights of the columns [B,H,T,N], F after the rows, and M's share of L_mem,
        F itself: [B,G,T,N]."""
        H, ratio, rows = self.H, self.H // self.Hkv, None
        x = at_q[:, None, :, None] - at_k[:, :, None, :]
        keep = self.sees(x) & (at_k >= 0)[:, :, None, :]
        A = self.logits(q, k, x, tables, of_rows, of_keys)
        if self.selections:
            S = self.selected(A, sq, sk, x, at_q, at_k)
            total = S.cumsum(2)
            rows = F[:, :, None] + (fn.pad(total[:, :, :-1], (0, 0, 1, 0)) if self.select.get("shift", True) else total)
            F = F + total[:, :, -1]
            A = A - rows.repeat_interleave(H // self.selections, 1)
        spread = lambda t: t.repeat_interleave(H // t.shape[1], 1)
        keep, m = spread(keep), None
        if z is not None:
            ramp, limit = self.span_terms.get("ramp", 32), self.span_terms.get("limit", 1024)
            m = ((ramp + limit * z - spread(x).float()) / ramp).clamp(0, 1)
            keep = keep & (m > 0)
        A = A.masked_fill(~keep, -math.inf)
        if self.sinks or self.off_by_one:
            if self.off_by_one:
                sink = A.new_zeros(A.shape[:3] + (1,))
            else:
                sink = self.scale * torch.einsum("bhrtd,hnd->bhrtn", q.unflatten(1, (self.Hkv, ratio)).float(),
                                                 self.sink_k.float()).flatten(1, 2)
            A = torch.cat((sink, A), -1)
        n = A.shape[-1] - keep.shape[-1]
        top = A.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(A.dtype).min)
        W = (A - top).exp()
        if m is not None:
            W = torch.cat((W[..., :n], W[..., n:] * m), -1)
        sums = W.sum(-1, keepdim=True)
        W = W / torch.where(sums > 0, sums, 1)
        if self.threshold is not None:
            W = torch.cat((W[..., :n], self.thresholded(W[..., n:], at_k)), -1)
            sums = W.sum(-1, keepdim=True)
            W = W / torch.where(sums > 0, sums, 1)
        weights = W[..., n:]
        used = fn.dropout(weights, self.dropout, self.training).to(v.dtype)
        y = torch.matmul(used.unflatten(1, (self.Hkv, ratio)), v.unsqueeze(2)).flatten(1, 2)
        if self.sinks:
            y = y + torch.einsum("bhrtn,hnd->bhrtd", W[..., :n].unflatten(1, (self.Hkv, ratio)).to(v.dtype),
                                 self.sink_v).flatten(1, 2)
        if self.exclusive:
            own_v = own_v.repeat_interleave(ratio, 1)
            along = (y * own_v).sum(-1, keepdim=True) / own_v.square().sum(-1, keepdim=True).clamp(min=1e-30)
            if hasattr(self, "exclusive_gate"):
                along = along * self.exclusive_gate[None, :, None, None]
            y = y - along * own_v
        return y, weights, F, rows

    def grouped_sums(self, weights, valid, groups):
        """Attention sums of the rows, [B,P,T,N]."""
        w = torch.where(valid[:, None, :, None], weights.detach(), 0)
        return w.unflatten(1, (groups, -1)).sum(2)

    def one_by_one(self, q, k, v, at, cache, budgets, sq, sk, z, tables, numbers):
        """Rows one by one under a budget: each evicts a token if the slots are full, enters, and attends to what is held."""
        K, P, out = budgets.tokens[self.layer], budgets.groups, []
        B, heads = q.shape[0], self.Hkv
        t = cache.tensors
        for r in range(q.shape[2]):
            row, new = at[:, r], slice(r, r + 1)
            valid = row >= 0
            own = {name: n[:, :, new] for name, n in numbers.items()}
            if cache.slots < K:  # room for one more
                self.store(cache, k[:, :, new], v[:, :, new], at[:, new], sk[:, :, new] if sk is not None else None, P,
                           budgets.sums, own)
            else:
                free = t["at"] < 0
                left = self.left(row, cache, P) if budgets.policy == "gates" else None
                slot = torch.where(free.any(-1), free.int().argmax(-1),
                                   budgets.choose(self.layer, t["at"], row, t["F"], t["notes"], left))  # [B,P]
                def put(name, value, count):
                    s = slot.repeat_interleave(count // P, 1)
                    s = s[..., None] if value.dim() == 3 else s[..., None, None].expand(B, count, 1, value.shape[-1])
                    value = torch.where(valid.view(-1, *[1] * (value.dim() - 1)), value, t[name].gather(2, s))
                    t[name] = t[name].scatter(2, s, value.to(t[name].dtype))
                put("k", k[:, :, new], heads)
                put("v", v[:, :, new], heads)
                put("at", row[:, None, None].expand(B, P, 1), P)
                for name in self.gates:
                    put(name, own[name], own[name].shape[1])
                if self.selections:
                    put("F", t["F"].new_zeros(B, self.selections, 1), self.selections)
                if sk is not None:
                    put("sk", sk[:, :, new], self.selections)
                if budgets.sums:
                    put("notes", t["notes"].new_zeros(B, P, 1), P)
            y, weights, t["F"], _ = self.attend(q[:, :, new], t["k"], t["v"], v[:, :, new], at[:, new], t["at"], t["F"],
                                                sq[:, :, new] if sq is not None else None, t["sk"],
                                                z[:, :, new] if z is not None and z.shape[2] > 1 else z, tables, own, t)
            if budgets.sums:
                self.note(cache, budgets, weights, valid[:, None])
            out.append(y)
        return torch.cat(out, 2)

    def store(self, cache, k, v, at, sk, P, notes, numbers):
        """New slots for rows."""
        B, T = at.shape
        new = {"k": k, "v": v, "at": at[:, None].expand(B, P, T), "sk": sk,
               "F": k.new_zeros(B, self.selections, T, dtype=torch.float32) if self.selections else None,
               "notes": k.new_zeros(B, P, T, dtype=torch.float32) if notes else None, **numbers}
        for name, value in new.items():
            old = cache.tensors.get(name)
            cache.tensors[name] = value if old is None or value is None else torch.cat((old, value), 2)

    def note(self, cache, budgets, weights, valid):
        sums, t = self.grouped_sums(weights, valid, budgets.groups), cache.tensors
        if budgets.policy == "h2o":
            t["notes"] = t["notes"] + sums.sum(2)
        else:  # of the last row that is a token
            t["notes"] = torch.where(valid[:, -1, None, None], sums[:, :, -1], t["notes"])

    def forward(self, x, at, cache, budgets, tables, rotation):
        """x [B,T,C] after the norm, at [B,T] positions, -1: padding. cache: LayerCache or None. Returns [B,T,C], F."""
        B, T, _ = x.shape
        H, Hkv, D, G = self.H, self.Hkv, self.D, self.selections
        q, k, v = self.qkv(x).view(B, T, H + 2 * Hkv, D).transpose(1, 2).split((H, Hkv, Hkv), 1)
        if self.own.get("qk_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        before = k
        if rotation is not None:
            adjacent = self.own.get("rope_pairs", "halves") == "adjacent"
            q, k = rotate(q, at, *rotation, adjacent), rotate(k, at, *rotation, adjacent)
        sq = sk = z = None
        if G and self.select.get("bilinear"):
            sq, sk = (f(x).view(B, T, G, D).transpose(1, 2) for f in (self.select_q, self.select_k))
        if self.span_terms is not None:
            z = (torch.sigmoid(self.span(x).float()).transpose(1, 2)[..., None] if self.span_terms.get("dynamic") else
                 self.span.float()[None, :, None, None])
        P, numbers = budgets.groups if budgets else 1, self.numbers(x, (before, k), at, cache)
        if budgets and (cache.slots + T > budgets.tokens[self.layer]):
            y, rows = self.one_by_one(q, k, v, at, cache, budgets, sq, sk, z, tables, numbers), None
        elif cache is not None:
            self.store(cache, k, v, at, sk, P, bool(budgets and budgets.sums), numbers)
            t = cache.tensors
            y, weights, t["F"], rows = self.attend(q, t["k"], t["v"], v, at, t["at"], t["F"], sq, t["sk"], z, tables, numbers,
                                                  t)
            if budgets and budgets.sums:
                self.note(cache, budgets, weights, at >= 0)
        else:
            F = x.new_zeros(B, G, T, dtype=torch.float32) if G else None
            y, _, _, rows = self.attend(q, k, v, v, at, at[:, None], F, sq, sk, z, tables, numbers, numbers)
        return self.out(y.transpose(1, 2).reshape(B, T, H * D).to(x.dtype)), rows, z, numbers


class Layer(nn.Module):
    def __init__(self, own, layer):
        super().__init__()
        C, inner, bias = own["width"], own["ffn_width"], own.get("bias", False)
        self.place, self.kind = own.get("norm_place", "pre"), own["ffn"]
        self.dropout, self.dropout_hidden = own.get("dropout", 0), own.get("dropout_hidden", 0)
        gated = self.kind in ("swiglu", "geglu")
        self.norm1, self.norm2 = Norm(own, C, bias), Norm(own, C, bias)
        self.attn = Attention(own, layer)
        self.ffn = nn.ModuleDict({"in": nn.Linear(C, inner * (2 if gated else 1), bias=bias),
                                  "out": nn.Linear(inner, C, bias=bias)})
        if self.place == "both":
            self.post_norm1, self.post_norm2 = Norm(own, C, bias), Norm(own, C, bias)

    def feed_forward(self, x):
        x = self.ffn["in"](x)
        if self.kind in ("swiglu", "geglu"):
            gate, up = x.chunk(2, -1)
            x = (fn.silu(gate) if self.kind == "swiglu" else fn.gelu(gate, approximate="tanh")) * up
        elif self.kind in ("relu", "relu2"):
            x = fn.relu(x)
            x = x * x if self.kind == "relu2" else x
        else:
            x = fn.gelu(x, approximate="none" if self.kind == "gelu_erf" else "tanh")
        return self.ffn["out"](fn.dropout(x, self.dropout_hidden, self.training))

    def forward(self, x, *how):
        drop = lambda y: fn.dropout(y, self.dropout, self.training)
        if self.place == "post":
            y, *told = self.attn(x, *how)
            x = self.norm1(x + drop(y))
            return self.norm2(x + drop(self.feed_forward(x))), *told
        y, *told = self.attn(self.norm1(x), *how)
        x = x + drop(y if self.place == "pre" else self.post_norm1(y))
        y = self.feed_forward(self.norm2(x))
        return x + drop(y if self.place == "pre" else self.post_norm2(y)), *told


# ---- the model ----

class WinnowForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = WinnowConfig
    base_model_prefix = ""
    _no_split_modules = ["Layer"]
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = False

    def __init__(self, config):
        super().__init__(config)
        own = self.own = config.winnow
        if own.get("encoder", {}).get("layers") or own.get("memory"):
            raise ValueError("an encoder and segment recurrence are not served here")
        unknown = set(own.get("attention", {})) - SERVED
        if unknown:
            raise ValueError(f"attention has {', '.join(sorted(unknown))}, which this file does not know")
        a, C, V = own.get("attention", {}), own["width"], own["vocab_size"]
        self.embed = nn.Embedding(V, C)
        if own["position"] == "learned":
            self.pos = nn.Embedding(own["context"], C)
        if own.get("embed_norm"):
            self.embed_norm = Norm(own, C, own.get("bias", False))
        if own.get("rope_factors"):
            self.rope = nn.ParameterDict({"factors": nn.Parameter(
                torch.ones((own.get("rope_size") or own["head_size"]) // 2), requires_grad=False)})
        if switched_on(a, "relative") is not None:
            length = switched_on(a, "relative").get("length") or own["context"]
            self.relative = nn.Embedding(length, own["head_size"])
        if switched_on(a, "buckets") is not None:
            self.position_bias = nn.Embedding(switched_on(a, "buckets").get("count", 32), own["heads"])
        self.layers = nn.ModuleList(Layer(own, layer) for layer in range(own["layers"]))
        if own.get("norm_place", "pre") != "post":
            self.final_norm = Norm(own, C, own.get("bias", False))
        if not own.get("tied"):
            self.output = nn.Linear(C, V, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def set_input_embeddings(self, value):
        self.embed = value

    def get_output_embeddings(self):
        return getattr(self, "output", None)

    def set_output_embeddings(self, value):
        self.output = value

    @torch.no_grad()
    def _init_weights(self, module):
        std, layers = self.own.get("init_std", 0.02), self.own["layers"]
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, 0, std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, Norm):
            nn.init.ones_(module.gain)
            if module.shift is not None:
                nn.init.zeros_(module.shift)
        if isinstance(module, Layer):  # into the residual stream
            nn.init.normal_(module.attn.out.weight, 0, std / math.sqrt(2 * layers))
            nn.init.normal_(module.ffn["out"].weight, 0, std / math.sqrt(2 * layers))
        if isinstance(module, Attention):
            if isinstance(getattr(module, "span", None), nn.Linear):
                nn.init.constant_(module.span.bias, -4)
            for name in module.gates:
                nn.init.constant_(getattr(module, name).bias, {"forget": 0, "write": 3, "fade": 5}[name])
            if module.sinks:
                nn.init.normal_(module.sink_k, 0, 0.02)
                nn.init.normal_(module.sink_v, 0, 0.02)

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = WinnowCache(self.own["layers"])

    def positions(self, batch, T, seen, attention_mask, position_ids, device):
        """[B,T], -1 for padding."""
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError("attention_mask: one number for each token of each sequence, [B,T]")
        if attention_mask is not None and not bool(attention_mask.bool().all()):
            mask = attention_mask.long()
            at = torch.where(mask > 0, mask.cumsum(-1) - 1, -1)[:, -T:]
        else:
            at = (torch.arange(T, device=device) + seen)[None].expand(batch, T)
        if position_ids is not None and bool((torch.where(at >= 0, position_ids.expand_as(at) - at, 0) != 0).any()):
            raise ValueError("position_ids other than 0, 1, 2, ... of each sequence are not served; attention_mask says "
                             "what is padding")
        if self.own["position"] == "learned" and int(at.max()) >= self.own["context"]:
            raise ValueError(f"a text of {int(at.max()) + 1} tokens; learned positions reach to {self.own['context']}")
        return at

    def rotations(self):
        """Rotations for layers without a window and with one."""
        if self.own["position"] != "rope":
            return None, None
        factors = self.rope["factors"] if hasattr(self, "rope") else None
        whole = rotary_frequencies(self.own, False, factors)
        return whole, rotary_frequencies(self.own, True, None) if self.own.get("rope_local_theta", 0) > 0 else whole

    def clamp(self):
        """Clamps spans to [0,1] and strengths to 0 and above; to be called after each optimizer step."""
        with torch.no_grad():
            for layer in self.layers:
                if isinstance(getattr(layer.attn, "span", None), nn.Parameter):
                    layer.attn.span.clamp_(0, 1)
                if hasattr(layer.attn, "select_strength"):
                    layer.attn.select_strength.clamp_(min=0)

    def regularisation(self, rows, spans, gates, at, targets):
        """L_mem (Leviathan et al. 2024, equation 2) and the losses that keep spans short and gates shut, as winnow trains with
        them: a sequence ends at its last target; what follows, a last token that nothing is predicted from included, is padding."""
        ends = (targets != -100).flip(-1).cumsum(-1).flip(-1) > 0
        a, loss, valid = self.own.get("attention", {}), 0.0, (at >= 0) & ends
        # A column that a row does not see has no part in what the row keeps.
        seen = lambda: (at[:, :, None] >= at[:, None, :]) & valid[:, None, :] & valid[:, :, None]
        mem = switched_on((switched_on(a, "selective") or {}), "mem") if switched_on(a, "selective") is not None else None
        if mem is not None and "mem" in a["selective"]:
            tau, eps, n, causal = mem.get("tau", 1), mem.get("eps", 0.1), valid.sum(-1), seen()
            for F in rows:
                kept = torch.where(causal[:, None], 1 - F.clamp(max=tau) / tau, 0).sum(-1)
                each = (kept.amax(-1) / n.clamp(min=1)[:, None]).mean(-1)  # of a sequence without targets 0, and not counted
                loss = loss + eps * each.sum() / (n > 0).sum().clamp(min=1) / len(rows)
        span = switched_on(a, "span")
        if span is not None:
            each = span.get("loss", 2e-6) * span.get("limit", 1024)
            for z in spans:
                mean = z[0, :, 0, 0] if z.shape[2] == 1 and not span.get("dynamic") else \
                    (z[..., 0] * valid[:, None]).sum((0, 2)) / valid.sum().clamp(min=1)
                loss = loss + each * mean.mean()
        for name in ("write", "fade"):
            gate = switched_on(a, name) or {}
            if not gate.get("loss", 0):
                continue
            of, ages = (valid, None) if name == "write" else (seen(), (at[:, :, None] - at[:, None, :]).clamp(min=0)[:, None])
            shares = []
            for numbers in gates:
                c = numbers[name].double()
                kept = c.exp() if ages is None else (ages * c[:, :, None]).exp()
                shares.append((kept * of[:, None]).sum() / (of.sum() * c.shape[1]).clamp(min=1))
            loss = loss + gate["loss"] * (sum(shares) / len(shares) - gate.get("keep", 0)).clamp(min=0)
        return loss

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None,
                labels=None, use_cache=None, budgets=None, policy=None, policy_options=None, logits_to_keep=0,
                return_dict=None, **kwargs):
        """budgets, policy, policy_options: see WinnowConfig. shift_labels as transformers' losses have it: labels that are
        the next tokens already."""
        own = self.own
        if self.training:
            self.clamp()
        x = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        B, T = x.shape[:2]
        use_cache = self.config.use_cache if use_cache is None else use_cache
        budgets = self.config.budgets if budgets is None else budgets
        cache = past_key_values
        if cache is not None and not isinstance(cache, WinnowCache):
            if cache.get_seq_length() > 0:
                raise ValueError(f"past_key_values is a {type(cache).__name__}; a WinnowCache carries F and positions")
            cache = None
        if cache is not None and budgets is None and cache.budgets is not None:
            bounds = cache.budgets
        elif budgets is not None:
            bounds = Budgets(self, budgets, policy or self.config.policy, policy_options or self.config.policy_options)
        else:
            bounds = None
        if cache is None and (bounds is not None or (use_cache and not self.training)):
            cache = WinnowCache(own["layers"])
        if cache is not None and cache.seen and (bounds and bounds.key()) != (cache.budgets and cache.budgets.key()):
            raise ValueError("the cache was filled under other budgets")
        at = self.positions(B, T, cache.seen if cache is not None else 0, attention_mask, position_ids, x.device)
        if own.get("embed_scale", 0):
            x = x * own["embed_scale"]
        if own["position"] == "learned":
            x = x + self.pos(at.clamp(min=0))
        if own.get("embed_norm"):
            x = self.embed_norm(x)
        x = fn.dropout(x, own.get("dropout", 0), self.training)
        tables = {"relative": self.relative.weight if hasattr(self, "relative") else None,
                  "buckets": self.position_bias.weight if hasattr(self, "position_bias") else None}
        whole, local = self.rotations()
        rows, spans, gates = [], [], []
        for i, layer in enumerate(self.layers):
            x, F, z, numbers = layer(x, at, cache.layers[i] if cache is not None else None, bounds, tables,
                            local if layer.attn.windowed else whole)
            rows.append(F), spans.append(z), gates.append(numbers)
        if cache is not None:
            cache.seen, cache.budgets = cache.seen + T, bounds
        if hasattr(self, "final_norm"):
            x = self.final_norm(x)
        if isinstance(logits_to_keep, int):
            x = x[:, -logits_to_keep:] if logits_to_keep else x
        else:
            x = x[:, logits_to_keep]
        logits = fn.linear(x, self.embed.weight if own.get("tied") else self.output.weight)
        if own.get("logit_softcap", 0):
            logits = own["logit_softcap"] * torch.tanh(logits / own["logit_softcap"])
        loss = None
        if labels is not None or kwargs.get("shift_labels") is not None:
            known = {k: kwargs[k] for k in ("shift_labels", "num_items_in_batch") if k in kwargs}
            loss = self.loss_function(logits, labels, own["vocab_size"], **known)
            if self.training:
                targets = known.get("shift_labels")
                targets = fn.pad(labels, (0, 1), value=-100)[:, 1:] if targets is None else targets
                loss = loss + self.regularisation(rows, spans, gates, at, targets.to(at.device))
        cache = cache if use_cache else None
        if return_dict is False:
            return tuple(v for v in (loss, logits, cache) if v is not None)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)
