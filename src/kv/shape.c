/* What the shape of a layer's cache follows from: the attention, the budgets' policy, and the format, which says how
 * keys and values are stored. */
#include <string.h>

#include "attention/registry.h"
#include "base/memory.h"
#include "kv/cache.h"
#include "kv/policy.h"

static const struct {
  const char *name;
  wn_gguf_type k, v;
} cache_formats[WN_CACHE_COUNT] = {
    [WN_CACHE_FLOAT] = {"float", WN_GGUF_F32, WN_GGUF_F32}, [WN_CACHE_HALF] = {"half", WN_GGUF_F16, WN_GGUF_F16},
    [WN_CACHE_AUTO] = {"auto", WN_GGUF_F32, WN_GGUF_F32},   [WN_CACHE_Q8_0] = {"q8_0", WN_GGUF_Q8_0, WN_GGUF_Q8_0},
    [WN_CACHE_Q4_0] = {"q4_0", WN_GGUF_Q8_0, WN_GGUF_Q4_0},
};

const char *wn_cache_format_name(wn_cache_format format) {
  return (unsigned)format < WN_CACHE_COUNT ? cache_formats[format].name : "unknown";
}

void wn_kv_shape_store(struct wn_kv_shape *shape, wn_cache_format format) {
  shape->k_type = cache_formats[format].k;
  shape->v_type = cache_formats[format].v;
}

/* Is the number of some map a running sum? */
static bool shape_sums(const struct wn_kv_shape *s) {
  bool sums = false;
  for (int64_t i = 0; i < s->keyed; i++) sums = sums || s->map[i].kind->sums;
  return sums;
}

void wn_kv_shape_of(const wn_attention_config *attention, const struct wn_attention_shape *model, int64_t B,
                    int64_t capacity, wn_dtype dtype, const wn_budgets *budgets, struct wn_kv_shape *out) {
  const int64_t kv_heads = model->kv_heads;
  *out = (struct wn_kv_shape){.B = B,
                              .Hkv = kv_heads,
                              .D = model->head_size,
                              .capacity = capacity,
                              .dtype = dtype,
                              .selections = wn_attention_selections(attention, kv_heads),
                              .bilinear = attention->selective.enabled && attention->selective.bilinear};
  struct wn_score_map maps[WN_SCORE_MAPS_MAX];
  out->keyed = wn_attention_keyed(attention, model->heads, kv_heads, maps);
  memcpy(out->map, maps, (size_t)out->keyed * sizeof *maps);
  for (int64_t i = 0; i < out->keyed; i++) out->gates += maps[i].gates;
  out->width = out->gates * (shape_sums(out) ? 2 : 1);
  if (!budgets) return;
  out->groups = wn_policy_groups(budgets, kv_heads, out->selections);
  out->notes = wn_policy_notes(budgets);
  out->asked = wn_policy_on_host(wn_policy_row(budgets->policy));
  out->asked_keys = out->asked && wn_policy_needs(budgets) & WN_POLICY_KEYS;
  out->asked_values = out->asked && wn_policy_needs(budgets) & WN_POLICY_VALUES;
}

void wn_kv_shape_of_heads(struct wn_kv_shape *shape, int64_t g0, int64_t n) {
  if (shape->selections > 1) shape->selections = n;
  if (shape->groups > 1) shape->groups = n, shape->first_group = g0;
  shape->Hkv = n;
}

const struct wn_memory *wn_kv_memory(const struct wn_kv_shape *shape) {
  return shape->memory ? shape->memory : &wn_host_memory;
}
