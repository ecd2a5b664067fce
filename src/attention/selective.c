/* Selective attention: Leviathan, Kalman, Matias, arXiv 2410.02703.
 *   S[i,j] = relu(L[head,i,j]) for first < j < i, else 0;  F[i,j] = sum over rows k < i of S[k,j];  A = L - F
 *   L_mem:  eps * max_i M[i] / T,  M[i] = i + 1 - first - sum_j min(F[i,j], tau) / tau     (equation 2)
 * Each choice that the paper ablates (section 3.2, 3.3, appendix A.2 to A.4) is one key. */
#include "attention/registry.h"
#include "base/error.h"

#define AT(member) offsetof(wn_attention_config, selective.member)

static const struct wn_field fields[] = {
    {"selective.enabled", WN_FIELD_BOOL, AT(enabled), 0, 0, NULL, "tokens mask earlier tokens for later ones"},
    {"selective.head", WN_FIELD_INT, AT(head), 0, 65535, NULL, "the head whose logits select"},
    {"selective.relu", WN_FIELD_BOOL, AT(relu), 0, 0, NULL, "only positive logits select"},
    {"selective.protect_first", WN_FIELD_BOOL, AT(protect_first), 0, 0, NULL,
     "a document's first token is never selected"},
    {"selective.protect_self", WN_FIELD_BOOL, AT(protect_self), 0, 0, NULL, "a token does not select itself"},
    {"selective.shift", WN_FIELD_BOOL, AT(shift), 0, 0, NULL, "a row's selection counts from the next row on"},
    {"selective.bilinear", WN_FIELD_BOOL, AT(bilinear), 0, 0, NULL,
     "selection from its own projections instead of a head's logits"},
    {"selective.mem.enabled", WN_FIELD_BOOL, AT(mem.enabled), 0, 0, NULL, "the memory loss L_mem"},
    {"selective.mem.eps", WN_FIELD_DOUBLE, AT(mem.eps), 0, 1e6, NULL, "weight of L_mem"},
    {"selective.mem.tau", WN_FIELD_DOUBLE, AT(mem.tau), 1e-6, 1e6, NULL, "F at which a token counts as dropped"},
};

static void init(wn_attention_config *config) {
  wn_selective_config *s = &config->selective;
  s->relu = s->protect_first = s->protect_self = s->shift = true;
  s->mem.eps = 0.1;
  s->mem.tau = 1;
}

static bool is_enabled(const wn_attention_config *config) {
  return config->selective.enabled;
}

static wn_status check(wn_context *ctx, const char *where, const wn_attention_config *config,
                       const struct wn_attention_shape *shape) {
  const wn_selective_config *s = &config->selective;
  if (!s->enabled) return WN_OK; /* its other keys may stay: one switch turns the whole of it off */
  if (s->head < 0 || (shape->heads > 0 && s->head >= shape->heads))
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: selective.head is %d; with %lld heads it must be between 0 and %lld", where,
                   s->head, (long long)shape->heads, (long long)shape->heads - 1);
  if (s->mem.enabled && !(s->mem.tau > 0 && s->mem.eps >= 0))
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: selective.mem has eps %g and tau %g; eps must be at least 0, tau above 0",
                   where, s->mem.eps, s->mem.tau);
  return WN_OK;
}

static void fill(const wn_attention_config *config, int64_t head_size, struct wn_attention *out) {
  (void)head_size;
  const wn_selective_config *s = &config->selective;
  out->sel.on = s->enabled;
  if (!s->enabled) return;
  out->sel.head = s->head;
  out->sel.relu = s->relu;
  out->sel.protect_first = s->protect_first;
  out->sel.protect_self = s->protect_self;
  out->sel.shift = s->shift;
  out->sel.bilinear = s->bilinear;
  out->sel.mem = s->mem.enabled;
  out->sel.mem_tau = s->mem.tau;
}

const struct wn_mechanism wn_mechanism_selective = {
    .name = "selective",
    .summary = "selective attention (Leviathan, Kalman, Matias 2024)",
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .init = init,
    .is_enabled = is_enabled,
    .check = check,
    .fill = fill,
};
