/* The list of mechanisms. A new one is its own file and one line here. */
#include "attention/registry.h"

#include <string.h>

#include "base/error.h"

static const struct wn_mechanism *const mechanisms[] = {
    &wn_mechanism_dense,     &wn_mechanism_selective, &wn_mechanism_span,        &wn_mechanism_relative,
    &wn_mechanism_window,    &wn_mechanism_strided,   &wn_mechanism_square_root, &wn_mechanism_sinks,
    &wn_mechanism_exclusive, &wn_mechanism_threshold, &wn_mechanism_buckets,
};

_Static_assert(sizeof mechanisms / sizeof *mechanisms <= WN_MECHANISMS_MAX, "raise WN_MECHANISMS_MAX");

int wn_mechanism_count(void) {
  return (int)(sizeof mechanisms / sizeof *mechanisms);
}

const struct wn_mechanism *wn_mechanism_at(int i) {
  return i >= 0 && i < wn_mechanism_count() ? mechanisms[i] : NULL;
}

const struct wn_mechanism_array *wn_mechanism_parameter(enum wn_array_role role, int i,
                                                        const wn_attention_config *config, bool *present) {
  for (int m = 0; m < wn_mechanism_count(); m++) {
    for (int k = 0; k < mechanisms[m]->array_count; k++) {
      const struct wn_mechanism_array *row = &mechanisms[m]->arrays[k];
      if (row->role != role || i-- > 0) continue;
      *present = mechanisms[m]->is_enabled(config) && (!row->present || row->present(config));
      return row;
    }
  }
  return NULL;
}

int wn_attention_field_groups(const char *prefix, size_t base, struct wn_field_group *out) {
  int n = wn_mechanism_count();
  for (int i = 0; i < n; i++)
    out[i] = (struct wn_field_group){
        .prefix = prefix, .fields = mechanisms[i]->fields, .count = mechanisms[i]->field_count, .base = base};
  return n;
}

wn_status wn_attention_config_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                                    const struct wn_attention_shape *shape) {
  for (int i = 0; i < wn_mechanism_count(); i++) {
    if (!mechanisms[i]->check) continue;
    wn_status status = mechanisms[i]->check(ctx, where, config, shape);
    if (status != WN_OK) return status;
  }
  return WN_OK;
}

void wn_attention_terms(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  for (int i = 0; i < wn_mechanism_count(); i++)
    if (mechanisms[i]->is_enabled(config)) mechanisms[i]->fill(config, layer, head_size, out);
}

bool wn_layer_pattern_has(const char *pattern, int64_t layer) {
  size_t n = strlen(pattern);
  return n == 0 || layer < 0 || pattern[(size_t)layer % n] == '1';
}

wn_status wn_layer_pattern_check(wn_context *ctx, const char *where, const char *key, const char *pattern) {
  for (size_t i = 0; pattern[i]; i++)
    if (pattern[i] != '0' && pattern[i] != '1')
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: %s is \"%s\"; expected one 1 (on) or 0 (off) a layer, as \"1110\"", where,
                     key, pattern);
  return WN_OK;
}

bool wn_mechanism_use_at(const wn_attention_config *config, int i, int64_t layer, wn_mechanism_use *out) {
  for (int m = 0; m < wn_mechanism_count(); m++) {
    if (mechanisms[m] == &wn_mechanism_dense || !mechanisms[m]->is_enabled(config) || i-- > 0) continue;
    /* A term that is on leaves something in an empty call. */
    static const struct wn_attention empty;
    struct wn_attention call;
    memset(&call, 0, sizeof call);
    mechanisms[m]->fill(config, layer, 1, &call);
    *out = (wn_mechanism_use){mechanisms[m]->name, mechanisms[m]->summary, memcmp(&call, &empty, sizeof call) != 0};
    return true;
  }
  return false;
}

int wn_attention_slots(const wn_attention_config *config, const wn_attention_arrays *a,
                       wn_attention_slot out[WN_ATTENTION_SLOTS_MAX]) {
  const struct wn_attention_dims dims = {a->B, a->T, a->H, a->Hkv, a->D};
  int n = 0;
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *m = mechanisms[i];
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
