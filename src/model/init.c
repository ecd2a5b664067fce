/* How parameters are initialised. Without rules: normal with init_std, and with init_std / sqrt(2 layers) for
 * projections into the residual stream (params.c). A rule of "model.init" replaces that for one class of tensors:
 *
 *   normal S      mean 0, standard deviation S
 *   uniform S     between -S and S
 *
 * where S is a number, or A/sqrt(B) with B one of fan_in (the tensor's columns), width and head_size: "uniform
 * 1/sqrt(head_size)". q, k and v are classes of their own although they share a tensor. Biases, norms' weights and the
 * mechanisms' own parameters have no class, except the vectors of relative positions, which belong to "positions". */
#include "model/init.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"

enum init_by { BY_NOTHING, BY_FAN_IN, BY_WIDTH, BY_HEAD_SIZE };

struct init_rule {
  enum wn_param_start_kind kind;
  double scale;
  enum init_by by;
};

static const struct {
  const char *name;
  size_t offset;
} init_classes[WN_INIT_CLASSES] = {
#define INIT_CLASS(of, name) [of] = {#name, offsetof(wn_model_config, init.name)}
    INIT_CLASS(WN_INIT_EMBEDDINGS, embeddings),
    INIT_CLASS(WN_INIT_POSITIONS, positions),
    INIT_CLASS(WN_INIT_Q, q),
    INIT_CLASS(WN_INIT_K, k),
    INIT_CLASS(WN_INIT_V, v),
    INIT_CLASS(WN_INIT_OUTPUT, output),
    INIT_CLASS(WN_INIT_FFN_IN, ffn_in),
    INIT_CLASS(WN_INIT_FFN_OUT, ffn_out),
    INIT_CLASS(WN_INIT_LOGITS, logits),
#undef INIT_CLASS
};

static const char *init_text(const wn_model_config *config, enum wn_init_class of) {
  return (const char *)config + init_classes[of].offset;
}

/* Parses "A/sqrt(B)" or "A", up to the end of the text. */
static bool init_parse_scale(const char *text, struct init_rule *out) {
  static const char *const names[] = {[BY_FAN_IN] = "fan_in", [BY_WIDTH] = "width", [BY_HEAD_SIZE] = "head_size"};
  if (*text != '.' && (*text < '0' || *text > '9')) return false; /* strtod would accept spaces, signs and "inf" */
  char *end;
  out->scale = wn_number_read(text, &end);
  if (!(out->scale >= 0 && out->scale <= 1e6)) return false;
  if (!*end) return true;
  if (strncmp(end, "/sqrt(", 6) != 0) return false;
  end += 6;
  for (int by = BY_FAN_IN; by <= BY_HEAD_SIZE; by++) {
    const size_t n = strlen(names[by]);
    if (strncmp(end, names[by], n) != 0 || strcmp(end + n, ")") != 0) continue;
    out->by = (enum init_by)by;
    return true;
  }
  return false;
}

static bool init_parse(const char *text, struct init_rule *out) {
  *out = (struct init_rule){0};
  if (!strncmp(text, "normal ", 7)) {
    out->kind = WN_START_NORMAL;
    return init_parse_scale(text + 7, out);
  }
  out->kind = WN_START_UNIFORM;
  return !strncmp(text, "uniform ", 8) && init_parse_scale(text + 8, out);
}

wn_status wn_init_check(wn_context *ctx, const wn_model_config *config) {
  struct init_rule rule;
  for (int i = WN_INIT_NONE + 1; i < WN_INIT_CLASSES; i++) {
    const char *text = init_text(config, (enum wn_init_class)i);
    if (*text && !init_parse(text, &rule))
      return wn_fail(
          ctx, WN_ERR_CONFIG,
          "model: init.%s is \"%s\"; expected \"normal S\" or \"uniform S\" with S a number from 0 to 1e6, or "
          "\"A/sqrt(fan_in)\", of width or of head_size",
          init_classes[i].name, text);
  }
  return WN_OK;
}

void wn_init_start(const wn_model_config *config, enum wn_init_class of, int64_t fan_in, struct wn_param_start *out) {
  struct init_rule rule;
  if (of == WN_INIT_NONE || !*init_text(config, of) || !init_parse(init_text(config, of), &rule)) return;
  const int64_t by[] = {
      [BY_NOTHING] = 1, [BY_FAN_IN] = fan_in, [BY_WIDTH] = config->width, [BY_HEAD_SIZE] = config->head_size};
  *out = (struct wn_param_start){rule.kind, rule.scale / sqrt((double)by[rule.by])};
}
