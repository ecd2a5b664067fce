/* The list of mechanisms. A new one is its own file and one line here. */
#include "attention/registry.h"

#include <string.h>

#include "base/error.h"
#include "base/misuse.h"
#include "ops/terms.h"

#define REGISTRY_ROW(name) &wn_mechanism_##name,
static const struct wn_mechanism *const mechanisms[] = {WN_MECHANISMS(REGISTRY_ROW)};
enum { REGISTRY_ROWS = sizeof mechanisms / sizeof *mechanisms };
const struct wn_mechanism *wn_mechanism_of_test;

_Static_assert(REGISTRY_ROWS < WN_MECHANISMS_MAX, "raise WN_MECHANISMS_MAX");
_Static_assert(sizeof(((wn_attention_config *)0)->settings) >= (WN_MECHANISM_own + 1) * WN_MECHANISM_SETTINGS_BYTES,
               "lengthen wn_attention_config.settings");

int wn_mechanism_count(void) {
  return REGISTRY_ROWS + (wn_mechanism_of_test != NULL);
}

const struct wn_mechanism *wn_mechanism_at(int i) {
  return i >= 0 && i < REGISTRY_ROWS ? mechanisms[i] : i == REGISTRY_ROWS ? wn_mechanism_of_test : NULL;
}

const char *wn_attention_config_lacks(const wn_attention_config *config, uint32_t traits) {
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *m = wn_mechanism_at(i);
    if (!m->is_enabled(config)) continue;
    const char *own = wn_terms_lack_traits(m->terms, traits);
    if (own) return own;
    if (m->score && (m->score->traits & traits) != traits) return m->score->name;
  }
  return NULL;
}

const char *wn_attention_config_unserved(const wn_attention_config *config, uint32_t served) {
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *m = wn_mechanism_at(i);
    if (!m->is_enabled(config)) continue;
    if (m->terms & ~served) return wn_terms_name(m->terms & ~served);
    const uint32_t map = m->score && wn_score_known(m->score) ? WN_TERM_SCORE_MAP : WN_TERM_UNKNOWN;
    if (m->score && (map & ~served)) return m->score->name;
  }
  return NULL;
}

const struct wn_mechanism_array *wn_mechanism_parameter(enum wn_array_role role, int i,
                                                        const wn_attention_config *config, bool *present) {
  for (int m = 0; m < wn_mechanism_count(); m++) {
    for (int k = 0; k < wn_mechanism_at(m)->array_count; k++) {
      const struct wn_mechanism_array *row = &wn_mechanism_at(m)->arrays[k];
      if (row->role != role || i-- > 0) continue;
      *present = wn_mechanism_at(m)->is_enabled(config) && (!row->present || row->present(config));
      return row;
    }
  }
  return NULL;
}

/* The call's map of the array's kind; NULL: none. */
static struct wn_score_map *registry_map(const struct wn_mechanism_array *array, struct wn_attention *out) {
  for (int64_t i = 0; array->map && i < out->maps; i++)
    if (out->map[i].kind == array->map) return &out->map[i];
  return NULL;
}

void wn_mechanism_bind_gradient(const struct wn_mechanism_array *array, void *gradient, struct wn_attention *out) {
  struct wn_score_map *map = registry_map(array, out);
  if (array->op_gradient) memcpy((char *)out + array->op_gradient, &gradient, sizeof gradient);
  if (map) *(array->role == WN_ARRAY_INPUT ? &map->dkey : &map->dtheta) = gradient;
}

void wn_mechanism_bind(const struct wn_mechanism_array *array, const void *value, void *gradient,
                       struct wn_attention *out) {
  struct wn_score_map *map = registry_map(array, out);
  if (array->op) memcpy((char *)out + array->op, &value, sizeof value);
  if (map) *(array->role == WN_ARRAY_INPUT ? &map->key : &map->theta) = value;
  wn_mechanism_bind_gradient(array, gradient, out);
}

struct wn_stride *wn_mechanism_strides(const struct wn_mechanism_input *input, const struct wn_mechanism_array *array,
                                       struct wn_attention *out) {
  struct wn_score_map *map = registry_map(array, out);
  return map ? &map->s_key : (struct wn_stride *)(void *)((char *)out + input->strides);
}

static const struct wn_mechanism_array *registry_array(const struct wn_mechanism *m, const char *name) {
  for (int i = 0; i < m->array_count; i++)
    if (!strcmp(m->arrays[i].name, name)) return &m->arrays[i];
  return NULL;
}

int wn_attention_inputs(const wn_attention_config *config, const struct wn_attention_dims *dims,
                        struct wn_attention_input out[WN_MECHANISM_INPUTS_MAX]) {
  int n = 0, slot = 0;
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *m = wn_mechanism_at(i);
    const bool enabled = m->input_count > 0 && m->is_enabled(config);
    for (int k = 0; k < m->input_count && slot < WN_MECHANISM_INPUTS_MAX; k++, slot++) {
      const struct wn_mechanism_input *how = &m->inputs[k];
      const struct wn_mechanism_array *array = registry_array(m, how->array);
      if (!enabled || (array->present && !array->present(config))) continue;
      const int64_t heads = how->heads(config, dims), size = how->size ? how->size(config, dims) : 1;
      out[n++] = (struct wn_attention_input){
          .slot = slot, .how = how, .array = array, .heads = heads, .size = size, .width = heads * size};
      out[n - 1].from_keys = how->from_keys && how->from_keys(config);
      out[n - 1].groups = out[n - 1].from_keys ? heads : 1;
      if (how->hidden) out[n - 1].hidden = how->hidden(config) * out[n - 1].groups;
    }
  }
  return n;
}

const char *wn_attention_input_not_cached(const wn_attention_config *config) {
  const struct wn_attention_dims dims = {.B = 1, .T = 1, .H = 1, .Hkv = 1, .D = 1};
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_attention_inputs(config, &dims, in);
  for (int i = 0; i < n; i++)
    if (in[i].how->of_keys && !in[i].array->map && in[i].array->op != WN_OP_AT(sel.sk)) return in[i].array->name;
  return NULL;
}

int wn_attention_field_groups(const char *prefix, size_t base, struct wn_field_group *out) {
  int n = wn_mechanism_count();
  for (int i = 0; i < n; i++)
    out[i] = (struct wn_field_group){
        .prefix = prefix,
        .fields = wn_mechanism_at(i)->fields,
        .count = wn_mechanism_at(i)->field_count,
        .optional = wn_mechanism_at(i)->settings > 0,
        .base = base + (wn_mechanism_at(i)->settings
                            ? offsetof(wn_attention_config, settings) + (size_t)i * WN_MECHANISM_SETTINGS_BYTES
                            : 0)};
  return n;
}

wn_status wn_attention_config_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                                    const struct wn_attention_shape *shape) {
  const char *term = config->bidirectional ? wn_attention_config_lacks(config, WN_TRAIT_OPEN) : NULL;
  if (term)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: bidirectional attention does not serve the term \"%s\"", where, term);
  const struct wn_mechanism *bends = NULL; /* the one whose map must be the last */
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *m = wn_mechanism_at(i);
    if (!m->score || !(m->score->forward_double || m->score->scales) || !m->is_enabled(config)) continue;
    if (bends) return wn_fail(ctx, WN_ERR_CONFIG, "%s: %s and %s exclude each other", where, bends->name, m->name);
    bends = m;
  }
  for (int i = 0; i < wn_mechanism_count(); i++) {
    if (!wn_mechanism_at(i)->check) continue;
    wn_status status = wn_mechanism_at(i)->check(ctx, where, config, shape);
    if (status != WN_OK) return status;
  }
  return WN_OK;
}

/* Biases come first, then keyed maps, then what depends on the logit. */
static int map_place(const struct wn_score_map *map) {
  return map->kind->forward_double ? 3 : map->kind->scales ? 2 : map->kind->keyed_double ? 1 : 0;
}

void wn_attention_terms(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  for (int i = 0; i < wn_mechanism_count(); i++)
    if (wn_mechanism_at(i)->is_enabled(config)) wn_mechanism_at(i)->fill(config, layer, head_size, out);
  for (int64_t i = 1; i < out->maps; i++) /* an insertion sort: those of a kind stay in order */
    for (int64_t j = i; j > 0 && map_place(&out->map[j - 1]) > map_place(&out->map[j]); j--) {
      const struct wn_score_map map = out->map[j];
      out->map[j] = out->map[j - 1], out->map[j - 1] = map;
    }
}

void wn_attention_in_training(struct wn_attention *call) {
  for (int64_t i = 0; i < call->maps; i++) call->map[i].idle = false;
}

int64_t wn_attention_keyed(const wn_attention_config *config, int64_t heads, int64_t kv_heads,
                           struct wn_score_map *out) {
  struct wn_attention call = {.H = heads, .Hkv = kv_heads};
  int64_t n = 0;
  wn_attention_terms(config, -1, 1, &call);
  for (const struct wn_score_map *t = call.map; t < call.map + call.maps; t++)
    if (t->kind->keyed_double) out[n++] = *t;
  return n;
}

bool wn_attention_has_sinks(const wn_attention_config *config) {
  struct wn_attention call = {.H = 1, .Hkv = 1};
  wn_attention_terms(config, -1, 1, &call);
  return call.sinks.n > 0;
}

bool wn_mechanism_use_at(const wn_attention_config *config, int i, int64_t layer, wn_mechanism_use *out) {
  WN_CHECK_OR(false, WN_POINTER(config), WN_POINTER(out));
  for (int m = 0; m < wn_mechanism_count(); m++) {
    if (wn_mechanism_at(m) == &wn_mechanism_dense || !wn_mechanism_at(m)->is_enabled(config) || i-- > 0) continue;
    struct wn_attention call = {.H = 1, .Hkv = 1};
    wn_mechanism_at(m)->fill(config, layer, 1, &call);
    *out = (wn_mechanism_use){wn_mechanism_at(m)->name, wn_mechanism_at(m)->summary, wn_call_terms(&call) != 0};
    return true;
  }
  return false;
}

int wn_attention_slots(const wn_attention_config *config, const wn_attention_arrays *a,
                       wn_attention_slot out[WN_ATTENTION_SLOTS_MAX]) {
  WN_CHECK_OR(0, WN_POINTER(config), WN_POINTER(a), WN_POINTER(out));
  const struct wn_attention_dims dims = {.B = a->B, .T = a->T, .H = a->H, .Hkv = a->Hkv, .D = a->D};
  int n = 0;
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *m = wn_mechanism_at(i);
    if (!m->is_enabled(config)) continue;
    for (int k = 0; k < m->array_count && n < WN_ATTENTION_SLOTS_MAX; k++) {
      const struct wn_mechanism_array *row = &m->arrays[k];
      if (row->present && !row->present(config)) continue;
      wn_attention_slot *slot = &out[n++];
      *slot = (wn_attention_slot){.name = row->name,
                                  .dtype = row->dtype == WN_F32 ? a->dtype : row->dtype,
                                  .is_input = row->role != WN_ARRAY_RESULT,
                                  .offset = row->array,
                                  .gradient = row->array_gradient};
      slot->ndim = row->shape(config, &dims, slot->shape);
    }
  }
  return n;
}
