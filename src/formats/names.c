/* Translates winnow's names of tensors into those of a naming: fills in the layer's number, and lists the parts that
 * are stacked. */
#include "formats/names.h"

#include <stdio.h>

#include "base/text.h"

const struct wn_names wn_names_own = {.title = "winnow", .prefix = ""};

/* Of "layers.12.rest" 12 and "rest"; of a name outside the layers -1 and the name itself. */
static int64_t names_layer(const char *name, const char **rest) {
  int64_t l = 0;
  *rest = name;
  if (strncmp(name, "layers.", 7) != 0) return -1;
  const char *at = name + 7;
  while (*at >= '0' && *at <= '9' && l < 1 << 20) l = 10 * l + (*at++ - '0');
  *rest = at + 1;
  return l;
}

/* Does `name` match `ours`, in which "%lld" stands for any number? *expert: that number, -1 without one. */
static bool names_are_same(const char *ours, const char *name, int64_t *expert) {
  const char *mark = strstr(ours, "%lld");
  *expert = -1;
  if (!mark) return !strcmp(ours, name);
  const size_t n = (size_t)(mark - ours);
  if (strncmp(ours, name, n) != 0) return false;
  int64_t e = 0;
  const char *at = name + n;
  if (*at < '0' || *at > '9') return false;
  while (*at >= '0' && *at <= '9' && e < 1 << 20) e = 10 * e + (*at++ - '0');
  *expert = e;
  return !strcmp(mark + 4, at);
}

/* Fills in a format of the tables: the first "%lld" is the layer, the second the expert. */
static void names_format(char out[WN_NAME_BYTES], const char *prefix, const char *format, int64_t l, int64_t expert) {
  const char *mark = strstr(format, "%lld"), *second = mark ? strstr(mark + 4, "%lld") : NULL;
  if (*format == '=') prefix = "", format++;
  if (second)
    snprintf(out, WN_NAME_BYTES, "%s%.*s%lld%.*s%lld%s", prefix, (int)(mark - format), format, (long long)l,
             (int)(second - mark - 4), mark + 4, (long long)expert, second + 4);
  else if (mark)
    snprintf(out, WN_NAME_BYTES, "%s%.*s%lld%s", prefix, (int)(mark - format), format, (long long)l, mark + 4);
  else
    snprintf(out, WN_NAME_BYTES, "%s%s", prefix, format);
}

/* The row for a name of winnow without its layer; NULL: the naming has none. *expert: the number in the name, or -1. */
static const struct wn_name *names_find(const struct wn_names *names, const char *name, bool in_layer,
                                        int64_t *expert) {
  for (; names; names = names->base)
    for (int i = 0; i < names->count; i++)
      if (names_are_same(names->rows[i].ours, name, expert) &&
          (strstr(names->rows[i].theirs[0], "%lld") != NULL) == in_layer)
        return &names->rows[i];
  return NULL;
}

int wn_names_parts(const struct wn_names *names, const wn_model_config *c, const char *prefix,
                   const struct wn_param *row, struct wn_name_part out[3]) {
  const char *name;
  const int64_t l = names_layer(row->name, &name), all = row->shape[0];
  if (names == &wn_names_own) {
    out[0] = (struct wn_name_part){.first = 0, .rows = all};
    snprintf(out[0].name, sizeof out[0].name, "%s", row->name);
    return 1;
  }
  int64_t expert;
  const struct wn_name *n = names_find(names, name, l >= 0, &expert);
  if (!n) return 0;
  int parts = 0;
  while (parts < 3 && n->theirs[parts]) parts++;
  const int64_t q = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
  const int64_t sizes[3] = {parts == 1 ? all : parts == 2 ? all / 2 : q, parts == 2 ? all / 2 : kv, kv};
  int64_t first = 0;
  for (int k = 0; k < parts; k++) {
    out[k] = (struct wn_name_part){.first = first,
                                   .rows = sizes[k],
                                   .transposed = n->transposed,
                                   .one_row = n->one_row,
                                   .listed = n->listed,
                                   .plus = wn_ends_with(name, ".gain") ? names->gain_plus : 0};
    if (n->stacked) out[k].expert = expert, out[k].experts = c->experts.count;
    names_format(out[k].name, prefix, n->theirs[k], l, expert);
    first += sizes[k];
  }
  return parts;
}

bool wn_names_ignore(const struct wn_names *names, const char *name) {
  while (!names->ignored && names->base) names = names->base;
  for (int i = 0; names->ignored && names->ignored[i]; i++)
    if (wn_ends_with(name, names->ignored[i])) return true;
  return false;
}

/* The source's place of the target's row d of a head, if the two have different rotary pairs. */
static int64_t names_other_place(const wn_model_config *target, int64_t d) {
  const int64_t R = target->rope_size ? target->rope_size : target->head_size, half = R / 2;
  if (d >= R) return d;
  return target->rope_pairs == WN_ROPE_HALVES ? 2 * (d % half) + d / half : d % 2 * half + d / 2;
}

int64_t wn_names_other_row(const wn_model_config *c, const struct wn_param *row, int64_t r) {
  const int64_t D = c->head_size, turned = (c->heads + c->kv_heads) * D;
  const bool gain = wn_ends_with(row->name, "attn.q_norm.gain") || wn_ends_with(row->name, "attn.k_norm.gain");
  const bool qk = wn_ends_with(row->name, "attn.qkv.weight") || wn_ends_with(row->name, "attn.qkv.bias");
  if (c->position != WN_POS_ROPE || (!gain && !(qk && r < turned))) return r;
  return r / D * D + names_other_place(c, r % D);
}
