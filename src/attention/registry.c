/* The list of mechanisms. A new one is its own file and one line here. */
#include "attention/registry.h"

static const struct wn_mechanism *const mechanisms[] = {
    &wn_mechanism_dense,
    &wn_mechanism_selective,
};

_Static_assert(sizeof mechanisms / sizeof *mechanisms <= WN_MECHANISMS_MAX, "raise WN_MECHANISMS_MAX");

int wn_mechanism_count(void) {
  return (int)(sizeof mechanisms / sizeof *mechanisms);
}

const struct wn_mechanism *wn_mechanism_at(int i) {
  return i >= 0 && i < wn_mechanism_count() ? mechanisms[i] : NULL;
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

void wn_attention_terms(const wn_attention_config *config, int64_t head_size, struct wn_attention *out) {
  for (int i = 0; i < wn_mechanism_count(); i++) mechanisms[i]->fill(config, head_size, out);
}
