/* Selective attention: Leviathan, Kalman, Matias, arXiv 2410.02703.
 *   S[i,j] = g relu(L[head,i,j]) for first < j < i, else 0;  F[i,j] = sum over rows k < i of S[k,j];  A = L - F
 *   bidirectional (an encoder): 1 <= j < n, j != i, and F[i,j] = sum over rows k != i (docs/selective-attention.md)
 *   L_mem:  eps * max_i M[i] / n,  M[i] = i + 1 - first - sum_j min(F[i,j], tau) / tau     (equation 2)
 *           over the n tokens of a document (ops.h)
 * Each choice that the paper ablates (section 3.2, 3.3, appendix A.2 to A.4) is one key. The strength g, 1 in the
 * paper, is for models that were trained without selection (docs/adapt.md): F is linear in g, and at 0 attention is
 * dense. The gradient of g is the sum of dS relu(L). Cost: one multiplication per pair. */
#include "attention/registry.h"
#include "base/error.h"
#include "ops/terms.h"

#define AT(member) offsetof(wn_attention_config, selective.member)

static const char *const strength_names[] = {"fixed", "learned", "scheduled", NULL};

static const struct wn_field fields[] = {
    WN_KEY("selective.enabled", BOOL, AT(enabled), "selective attention: tokens mask earlier tokens for later ones"),
    WN_KEY("selective.head", INT, AT(head), "the head whose logits select", .min = 0, .max = 65535),
    WN_KEY("selective.relu", BOOL, AT(relu), "only positive logits select"),
    WN_KEY("selective.protect_first", BOOL, AT(protect_first), "a document's first token is never selected"),
    WN_KEY("selective.protect_self", BOOL, AT(protect_self), "a token does not select itself"),
    WN_KEY("selective.shift", BOOL, AT(shift), "a row's selections act from the next row on"),
    WN_KEY("selective.bilinear", BOOL, AT(bilinear), "selection from its own projections instead of a head's logits"),
    WN_KEY("selective.per_kv_head", BOOL, AT(per_kv_head),
           "one selection for each key-value head instead of one per layer"),
    WN_KEY("selective.strength", ENUM, AT(strength),
           "factor of selections: 1, learned from 0, or rising from 0 to 1 in training", .names = strength_names),
    WN_KEY("selective.negligible", FORMER, 0,
           "dead-key skipping is a setting of the run; WINNOW_DEAD_KEYS=0 turns it off", .min = 0x1p-24),
    WN_KEY("selective.mem.enabled", BOOL, AT(mem.enabled), "the loss term L_mem"),
    WN_KEY("selective.mem.eps", DOUBLE, AT(mem.eps), "coefficient of L_mem", .min = 0, .max = 1e6),
    WN_KEY("selective.mem.tau", DOUBLE, AT(mem.tau), "F from which on a token counts as evicted", .min = 1e-6,
           .max = 1e6),
};

static void selective_init(wn_attention_config *config) {
  wn_selective_config *s = &config->selective;
  s->relu = s->protect_first = s->protect_self = s->shift = true;
  s->mem.eps = 0.1;
  s->mem.tau = 1;
}

int64_t wn_attention_selections(const wn_attention_config *config, int64_t kv_heads) {
  if (!config->selective.enabled) return 0;
  return config->selective.per_kv_head ? kv_heads : 1;
}

static bool selective_is_enabled(const wn_attention_config *config) {
  return config->selective.enabled;
}

static wn_status check(wn_context *ctx, const char *where, const wn_attention_config *config,
                       const struct wn_attention_shape *shape) {
  const wn_selective_config *s = &config->selective;
  if (!s->enabled) return WN_OK; /* its other keys may keep their values: `enabled` turns off all of it */
  const int64_t heads = s->per_kv_head && shape->kv_heads > 0 ? shape->heads / shape->kv_heads : shape->heads;
  if (s->head < 0 || (heads > 0 && s->head >= heads))
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: selective.head is %d; with %lld heads%s it must be between 0 and %lld",
                   where, s->head, (long long)heads, s->per_kv_head ? " a group" : "", (long long)heads - 1);
  if (config->bidirectional && s->mem.enabled)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "%s: selective.mem goes with causal attention: it shortens what a decoder's cache keeps, and "
                   "bidirectional rows have none",
                   where);
  if (s->mem.enabled && !(s->mem.tau > 0 && s->mem.eps >= 0))
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: selective.mem has eps %g and tau %g; eps must be at least 0, tau above 0",
                   where, s->mem.eps, s->mem.tau);
  return WN_OK;
}

static void selective_fill(const wn_attention_config *config, int64_t layer, int64_t head_size,
                           struct wn_attention *out) {
  (void)layer, (void)head_size;
  const wn_selective_config *s = &config->selective;
  out->sel.on = true;
  out->sel.groups = wn_attention_selections(config, out->Hkv);
  out->sel.head = s->head;
  out->sel.relu = s->relu;
  out->sel.protect_first = s->protect_first;
  out->sel.protect_self = s->protect_self;
  out->sel.shift = s->shift;
  out->sel.bilinear = s->bilinear;
  out->sel.mem = s->mem.enabled;
  out->sel.mem_tau = s->mem.tau;
}

static bool has_bilinear(const wn_attention_config *c) {
  return c->selective.bilinear;
}
static bool has_strength(const wn_attention_config *c) {
  return c->selective.enabled && c->selective.strength != WN_STRENGTH_FIXED;
}
static bool selective_has_mem(const wn_attention_config *c) {
  return c->selective.mem.enabled;
}
/* The dimension G is left out where a layer has one selection. */
static int shape_select(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  int n = 0;
  shape[n++] = d->B, shape[n++] = d->T;
  if (c->selective.per_kv_head) shape[n++] = d->Hkv;
  shape[n++] = d->D;
  return n;
}
static int shape_F(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  int n = 0;
  shape[n++] = d->B;
  if (c->selective.per_kv_head) shape[n++] = d->Hkv;
  shape[n++] = d->T, shape[n++] = d->T;
  return n;
}
static int shape_M(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  return shape_F(c, d, shape) - 1;
}
static int shape_strength(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  shape[0] = wn_attention_selections(c, d->Hkv);
  return 1;
}
static int shape_one(const wn_attention_config *c, const struct wn_attention_dims *d, int64_t shape[4]) {
  (void)c, (void)d;
  shape[0] = 1;
  return 1;
}

static void selective_layout(const struct wn_attention_dims *d, struct wn_attention *out) {
  const int64_t G = out->sel.groups;
  out->sel.s_sq = out->sel.s_sk = (struct wn_stride){.b = d->T * G * d->D, .t = G * d->D, .h = d->D};
}

static bool is_scheduled(const wn_attention_config *c) {
  return c->selective.strength == WN_STRENGTH_SCHEDULED;
}

static const struct wn_mechanism_array arrays[] = {
    WN_ARRAY_ROW(INPUT, sq, sel.sq, dsq, shape_select, .present = has_bilinear),
    WN_ARRAY_ROW(INPUT, sk, sel.sk, dsk, shape_select, .present = has_bilinear),
    WN_ARRAY_ROW(PARAMETER, strength, sel.strength, sel.dstrength, shape_strength, .param = "attn.select_strength",
                 .present = has_strength, .range = WN_RANGE_POSITIVE, .is_scheduled = is_scheduled),
    {.name = "F", .role = WN_ARRAY_RESULT, .shape = shape_F, .array = WN_ARRAY_AT(F), .op = WN_OP_AT(sel.F)},
    {.name = "M",
     .role = WN_ARRAY_RESULT,
     .present = selective_has_mem,
     .shape = shape_M,
     .array = WN_ARRAY_AT(M),
     .op = WN_OP_AT(sel.M)},
    {.name = "mem_loss",
     .role = WN_ARRAY_RESULT,
     .present = selective_has_mem,
     .shape = shape_one,
     .dtype = WN_F64,
     .array = WN_ARRAY_AT(mem_loss)},
};

static int64_t selective_groups(const wn_attention_config *c, const struct wn_attention_dims *d) {
  return wn_attention_selections(c, d->Hkv);
}

static int64_t head_size(const wn_attention_config *c, const struct wn_attention_dims *d) {
  (void)c;
  return d->D;
}

static int64_t selecting_head(const wn_attention_config *c) {
  return c->selective.head;
}

static const struct wn_mechanism_input selective_inputs[] = {
    {.array = "sq",
     .weight = "attn.select_q.weight",
     .heads = selective_groups,
     .size = head_size,
     .before_out = true,
     .strides = WN_OP_AT(sel.s_sq),
     .source = WN_INPUT_OF_QUERIES,
     .source_head = selecting_head},
    {.array = "sk",
     .weight = "attn.select_k.weight",
     .heads = selective_groups,
     .size = head_size,
     .of_keys = true,
     .before_out = true,
     .strides = WN_OP_AT(sel.s_sk),
     .source = WN_INPUT_OF_KEYS,
     .source_head = selecting_head},
};

static const char *const cases[] = {
    "{\"selective\":{}}",
    "{\"selective\":{\"mem\":{\"eps\":0.1,\"tau\":1.0}}}",
    "{\"selective\":{\"shift\":false,\"protect_self\":false}}",
    "{\"selective\":{\"protect_first\":false,\"head\":1,\"strength\":\"scheduled\"}}",
    "{\"selective\":{\"bilinear\":true}}",
    "{\"selective\":{\"per_kv_head\":true,\"mem\":{},\"strength\":\"learned\"}}",
    "{\"selective\":{\"relu\":false}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_selective = {
    .name = "selective",
    .summary = "selective attention (Leviathan, Kalman, Matias 2024)",
    .terms = WN_TERM_SELECTION,
    WN_MECHANISM_TABLE(field, fields),
    .init = selective_init,
    .is_enabled = selective_is_enabled,
    .check = check,
    .fill = selective_fill,
    WN_MECHANISM_TABLE(array, arrays),
    WN_MECHANISM_TABLE(input, selective_inputs),
    .layout = selective_layout,
    .cases = cases,
    .adapt_key = "selective.strength",
    .adapt_value = "learned",
};
