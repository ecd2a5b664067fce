/* Budgets: from a command line, from budgets.json, and whether they go with a model.
 *
 * budgets.json: {"policy": "selective", "tokens": [64, 64, 32, 96], ...}; the other keys are the policy's choices. A
 * layer whose key-value heads have budgets of their own has a list in the place of its number: [64, [16, 48], ...].
 * The file may come from anywhere: every number is checked before a byte is allocated for it. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/registry.h"
#include "base/alloc.h"
#include "base/fields.h"
#include "base/file.h"
#include "kv/budgets.h"
#include "kv/cache.h"
#include "kv/policy.h"

enum { PATH_BYTES = 4096, LAYERS_MAX = 1 << 16, HEADS_MAX = 1 << 16, BUDGETS_MAX = 1 << 20 };

#define AT(member) offsetof(wn_budgets, member)

static const struct wn_field budgets_fields[] = {
    {"policy", WN_FIELD_ENUM, AT(policy), 0, 0, wn_policy_names, "which token goes"},
    {"per_kv_head", WN_FIELD_BOOL, AT(per_kv_head), 0, 0, NULL, "each key-value head evicts for itself"},
};

/* The keys that all policies share, and those of each. */
static int budgets_groups(struct wn_field_group out[WN_POLICY_MAX + 1]) {
  int n = 0;
  out[n++] = (struct wn_field_group){"", budgets_fields, (int)(sizeof budgets_fields / sizeof *budgets_fields), 0};
  for (int p = 0; p < wn_policy_count(); p++) {
    const struct wn_policy_row *row = wn_policy_row(p);
    if (row->field_count > 0) out[n++] = (struct wn_field_group){"", row->fields, row->field_count, 0};
  }
  return n;
}

void wn_budgets_init(wn_budgets *budgets) {
  *budgets = (wn_budgets){0};
  for (int p = 0; p < wn_policy_count(); p++)
    if (wn_policy_row(p)->init) wn_policy_row(p)->init(budgets);
}

void wn_budgets_clear(wn_budgets *budgets) {
  wn_free(budgets->tokens);
  wn_free(budgets->head_tokens);
  memset(budgets, 0, sizeof *budgets);
}

int64_t wn_budgets_total(const wn_budgets *budgets) {
  const int64_t n = budgets->heads > 0 ? budgets->heads : 1, half = n / 2;
  const int64_t *tokens = budgets->heads > 0 ? budgets->head_tokens : budgets->tokens;
  int64_t total = 0;
  for (int64_t i = 0; i < budgets->layers * n; i++)
    if (__builtin_add_overflow(total, tokens[i], &total)) return INT64_MAX;
  return total / n + (total % n >= n - half);
}

int64_t wn_budgets_of(const wn_budgets *budgets, int64_t layer, int64_t kv_head) {
  return budgets->heads > 0 ? budgets->head_tokens[layer * budgets->heads + kv_head] : budgets->tokens[layer];
}

/* New tokens in the place of the old ones; all of `value`. heads: as in wn_budgets. */
static wn_status resize(wn_context *ctx, int64_t layers, int64_t heads, int64_t value, wn_budgets *out) {
  void *memory, *of_heads = NULL;
  WN_TRY(wn_alloc(ctx, "budgets", (size_t)layers * sizeof *out->tokens, &memory));
  if (heads > 0) {
    const wn_status status = wn_alloc(ctx, "budgets", (size_t)(layers * heads) * sizeof *out->head_tokens, &of_heads);
    if (status != WN_OK) {
      wn_free(memory);
      return status;
    }
  }
  wn_free(out->tokens);
  wn_free(out->head_tokens);
  out->tokens = memory;
  out->head_tokens = of_heads;
  out->layers = layers;
  out->heads = heads;
  for (int64_t l = 0; l < layers; l++) out->tokens[l] = value;
  for (int64_t i = 0; i < layers * heads; i++) out->head_tokens[i] = value;
  return WN_OK;
}

/* The budget of one head, or of all that the layer has (head -1). */
static void put(wn_budgets *out, int64_t layer, int64_t head, int64_t tokens) {
  for (int64_t h = 0; h < out->heads; h++)
    if (head < 0 || head == h) out->head_tokens[layer * out->heads + h] = tokens;
  if (tokens > out->tokens[layer]) out->tokens[layer] = tokens;
}

wn_status wn_budgets_copy(wn_context *ctx, const wn_budgets *from, wn_budgets *out) {
  wn_budgets copy = *from;
  copy.tokens = copy.head_tokens = NULL;
  *out = (wn_budgets){0};
  WN_TRY(resize(ctx, from->layers, from->heads, 0, &copy));
  memcpy(copy.tokens, from->tokens, (size_t)from->layers * sizeof *copy.tokens);
  if (from->heads > 0)
    memcpy(copy.head_tokens, from->head_tokens, (size_t)(from->layers * from->heads) * sizeof *copy.head_tokens);
  *out = copy;
  return WN_OK;
}

/* --- files --- */

static wn_status read_tokens(wn_context *ctx, const char *path, const json_t *list, wn_budgets *out) {
  if (!json_is_array(list))
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"tokens\" must be a list of budgets, one for each layer", path);
  const size_t n = json_array_size(list);
  if (n < 1 || n > LAYERS_MAX)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"tokens\" has %zu budgets, expected one for each layer", path, n);
  size_t heads = 0;
  for (size_t l = 0; l < n; l++) {
    const json_t *layer = json_array_get(list, l);
    const size_t here = json_array_size(layer);
    if (!json_is_array(layer)) continue;
    if (here < 1 || here > HEADS_MAX || here * n > BUDGETS_MAX || (heads > 0 && here != heads))
      return wn_fail(
          ctx, WN_ERR_CONFIG,
          "%s: \"tokens\"[%zu] has %zu budgets, expected one for each key-value head, as many in every layer", path, l,
          here);
    heads = here;
  }
  WN_TRY(resize(ctx, (int64_t)n, (int64_t)heads, 0, out));
  for (size_t l = 0; l < n; l++) {
    const json_t *layer = json_array_get(list, l);
    for (size_t h = 0; h < (json_is_array(layer) ? heads : 1); h++) {
      const json_t *value = json_is_array(layer) ? json_array_get(layer, h) : layer;
      const json_int_t tokens = json_integer_value(value);
      if (!json_is_integer(value) || tokens < 1)
        return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"tokens\"[%zu] must be %s at least 1", path, l,
                       json_is_array(layer) ? "whole numbers of" : "a whole number of");
      put(out, (int64_t)l, json_is_array(layer) ? (int64_t)h : -1, tokens);
    }
  }
  return WN_OK;
}

static wn_status read_object(wn_context *ctx, const char *path, json_t *object, wn_budgets *out) {
  if (!json_is_object(object)) return wn_fail(ctx, WN_ERR_CONFIG, "%s: expected an object", path);
  json_t *list = json_object_get(object, "tokens");
  if (!list) return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"tokens\" is missing: a list of budgets, one a layer", path);
  WN_TRY(read_tokens(ctx, path, list, out));
  json_object_del(object, "tokens");
  struct wn_field_group groups[WN_POLICY_MAX + 1];
  const int count = budgets_groups(groups);
  return wn_fields_read(ctx, path, object, groups, count, out);
}

wn_status wn_budgets_from_json(wn_context *ctx, const char *path, json_t *object, wn_budgets *out) {
  wn_budgets read;
  wn_budgets_init(&read);
  const wn_status status = read_object(ctx, path, object, &read);
  if (status != WN_OK) {
    wn_budgets_clear(&read);
    return status;
  }
  wn_budgets_clear(out);
  *out = read;
  return WN_OK;
}

wn_status wn_budgets_load(wn_context *ctx, const char *path, wn_budgets *out) {
  char inside[PATH_BYTES];
  json_t *object;
  if (wn_path_is_dir(path)) {
    WN_TRY(wn_path_join(ctx, inside, sizeof inside, path, "budgets.json"));
    path = inside;
  }
  WN_TRY(wn_json_load_file(ctx, path, &object));
  const wn_status status = wn_budgets_from_json(ctx, path, object, out);
  json_decref(object);
  return status;
}

wn_status wn_budgets_to_json(wn_context *ctx, const wn_budgets *budgets, json_t **out) {
  json_t *list = json_array();
  *out = NULL;
  bool ok = list != NULL;
  for (int64_t l = 0; ok && l < budgets->layers; l++) {
    json_t *layer = budgets->heads > 0 ? json_array() : json_integer(budgets->tokens[l]);
    ok = json_array_append_new(list, layer) == 0; /* refuses NULL, takes the layer even when it fails */
    for (int64_t h = 0; ok && h < budgets->heads; h++)
      ok = json_array_append_new(layer, json_integer(wn_budgets_of(budgets, l, h))) == 0;
  }
  struct wn_field_group groups[WN_POLICY_MAX + 1];
  const int count = budgets_groups(groups);
  wn_status status = wn_fields_write(ctx, groups, count, budgets, out);
  ok = ok && status == WN_OK && json_object_set(*out, "tokens", list) == 0;
  if (status == WN_OK && !ok) {
    json_decref(*out);
    *out = NULL;
    status = wn_fail(ctx, WN_ERR_MEMORY, "budgets: out of memory");
  }
  json_decref(list);
  return status;
}

wn_status wn_budgets_save(wn_context *ctx, const wn_budgets *budgets, const char *path) {
  json_t *object;
  WN_TRY(wn_budgets_to_json(ctx, budgets, &object));
  const wn_status status = wn_json_save_file(ctx, path, object);
  json_decref(object);
  return status;
}

static wn_status budgets_assign(wn_context *ctx, const char *text, json_t *object, wn_budgets *out) {
  struct wn_field_group groups[WN_POLICY_MAX + 1];
  const int count = budgets_groups(groups);
  for (const char *at = text;;) {
    char part[PATH_BYTES];
    const size_t n = strcspn(at, ",");
    if (n >= sizeof part) return wn_fail(ctx, WN_ERR_CONFIG, "policy options: a part of %zu bytes is too long", n);
    memcpy(part, at, n);
    part[n] = 0;
    WN_TRY(wn_json_set(ctx, object, part));
    if (!at[n]) break;
    at += n + 1;
  }
  return wn_fields_read(ctx, "policy options", object, groups, count, out);
}

wn_status wn_budgets_set(wn_context *ctx, const char *assignments, wn_budgets *out) {
  json_t *object = json_object();
  wn_budgets changed = *out;
  if (!object) return wn_fail(ctx, WN_ERR_MEMORY, "budgets: out of memory");
  const wn_status status = budgets_assign(ctx, assignments, object, &changed);
  json_decref(object);
  if (status == WN_OK) *out = changed;
  return status;
}

/* --- the command line --- */

/* The largest budget, the same in every layer, whose caches of one sequence take at most `bytes`. */
static wn_status from_bytes(wn_context *ctx, const wn_model_config *c, const char *text, double bytes,
                            wn_budgets *out) {
  int64_t low = 0, high = (int64_t)INT32_MAX + 1; /* low fits, high does not */
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    size_t each;
    struct wn_kv_shape shape;
    wn_kv_shape_of(c, 1, middle, WN_F32, out, &shape);
    shape.half = out->cache == WN_CACHE_HALF;
    if (wn_kv_shape_bytes(&shape, &each) && (double)each * (double)c->layers <= bytes)
      low = middle;
    else
      high = middle;
  }
  if (low < 1)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": not enough for one token in each of %lld layers", text,
                   (long long)c->layers);
  return resize(ctx, c->layers, 0, low, out);
}

/* Layers behind commas, a layer's key-value heads behind colons. A single layer with colons stands for all. */
static wn_status from_list(wn_context *ctx, const wn_model_config *c, const char *text, wn_budgets *out) {
  int64_t count = 1;
  const bool heads = strchr(text, ':') != NULL;
  for (const char *p = text; *p; p++) count += *p == ',';
  if (count != c->layers && !(heads && count == 1))
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": %lld of them, the model has %lld layers", text,
                   (long long)count, (long long)c->layers);
  WN_TRY(resize(ctx, c->layers, heads ? c->kv_heads : 0, 0, out));
  const char *at = text;
  int64_t number = 0;
  for (int64_t l = 0; l < count; l++) {
    const size_t length = strcspn(at, ",");
    int64_t here = 1;
    for (size_t i = 0; i < length; i++) here += at[i] == ':';
    if (here > 1 && here != c->kv_heads)
      return wn_fail(ctx, WN_ERR_CONFIG,
                     "budgets \"%s\": layer %lld has %lld of them, the model has %lld key-value heads", text,
                     (long long)l, (long long)here, (long long)c->kv_heads);
    for (int64_t h = 0; h < here; h++) {
      char *end;
      errno = 0;
      number++;
      const long long tokens = isdigit((unsigned char)*at) ? strtoll(at, &end, 10) : (end = (char *)(uintptr_t)at, 0);
      if (errno || tokens < 1 || *end != (h + 1 < here ? ':' : l + 1 < count ? ',' : 0))
        return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": number %lld must be a whole number of at least 1", text,
                       (long long)number);
      put(out, l, here > 1 ? h : -1, tokens);
      at = end + 1;
    }
  }
  for (int64_t l = count; l < c->layers; l++)
    for (int64_t h = 0; h < out->heads; h++) put(out, l, h, out->head_tokens[h]);
  return WN_OK;
}

wn_status wn_budgets_parse(wn_context *ctx, const wn_model_config *config, const char *text, wn_budgets *out) {
  const size_t digits = strspn(text, "0123456789."), list = strspn(text, "0123456789,:");
  if (list > 0 && text[list] == 0 && strpbrk(text, ",:")) return from_list(ctx, config, text, out);
  double bytes = 0;
  if (digits == 0 || strchr(text, '/') || (text[digits] && !wn_bytes_parse(text, &bytes))) {
    if (wn_path_exists(text)) return wn_budgets_load(ctx, text, out);
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets \"%s\": neither a number (64), a list (64,32 or 64:16,32:8 for key-value heads), a part of the "
        "context (0.25), bytes (2MiB) nor a file or folder that is there",
        text);
  }
  char *end;
  errno = 0;
  const double value = strtod(text, &end);
  if (end != text + digits || errno || !isfinite(value))
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": \"%.*s\" is not a number", text, (int)digits, text);
  if (*end) return from_bytes(ctx, config, text, bytes, out);
  if (memchr(text, '.', digits)) {
    if (!(value > 0 && value <= 1))
      return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": a part of the context must be above 0 and at most 1", text);
    const int64_t tokens = llround(value * (double)config->context);
    return resize(ctx, config->layers, 0, tokens > 1 ? tokens : 1, out);
  }
  if (!(value >= 1 && value <= 0x1p53))
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": must be at least 1 token and at most 2^53", text);
  return resize(ctx, config->layers, 0, (int64_t)value, out);
}

/* --- with a model --- */

/* Budgets of single heads. */
static wn_status check_heads(wn_context *ctx, const wn_budgets *b, const wn_model_config *c) {
  if (b->heads == 0) return WN_OK;
  if (b->heads != c->kv_heads || !b->head_tokens)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: %lld a layer, the model has %lld key-value heads", (long long)b->heads,
                   (long long)c->kv_heads);
  for (int64_t l = 0; l < b->layers; l++) {
    int64_t largest = 0;
    for (int64_t h = 0; h < b->heads; h++) {
      const int64_t K = wn_budgets_of(b, l, h);
      if (K < 1)
        return wn_fail(ctx, WN_ERR_CONFIG,
                       "budgets: layer %lld, key-value head %lld has %lld tokens, expected at least 1", (long long)l,
                       (long long)h, (long long)K);
      if (K > largest) largest = K;
    }
    if (b->tokens[l] != largest)
      return wn_fail(ctx, WN_ERR_CONFIG,
                     "budgets: layer %lld has %lld tokens, expected %lld, its heads' largest budget", (long long)l,
                     (long long)b->tokens[l], (long long)largest);
  }
  const int64_t selections = wn_attention_selections(&c->attention, c->kv_heads);
  if (wn_policy_groups(b, c->kv_heads, selections) == c->kv_heads) return WN_OK;
  const struct wn_policy_row *row = wn_policy_row(b->policy);
  return wn_fail(ctx, WN_ERR_CONFIG, "budgets: policy \"%s\" has one budget for a layer's key-value heads%s",
                 wn_policy_name(b->policy),
                 row->info.selective     ? " in a model without \"selective.per_kv_head\""
                 : row->info.per_kv_head ? " without \"per_kv_head\""
                                         : "");
}

/* And names the policies that would go. */
static wn_status refuse_policy(wn_context *ctx, wn_policy policy, const wn_attention_config *config) {
  char others[400] = "";
  for (int p = 0; p < wn_policy_count(); p++) {
    const size_t n = strlen(others);
    if (wn_policy_suits(p, config)) snprintf(others + n, sizeof others - n, "%s%s", n ? ", " : "", wn_policy_name(p));
  }
  return wn_fail(ctx, WN_ERR_CONFIG, "budgets: policy \"%s\" needs a model with selective attention; without it: %s",
                 wn_policy_name(policy), others);
}

static wn_status refuse_cache_positions(wn_context *ctx) {
  char which[400] = "";
  for (int p = 0; p < wn_policy_count(); p++) {
    const size_t n = strlen(which);
    if (wn_policy_row(p)->info.cache_positions)
      snprintf(which + n, sizeof which - n, "%s\"%s\"", n ? ", " : "", wn_policy_name(p));
  }
  return wn_fail(ctx, WN_ERR_CONFIG, "budgets: \"cache_positions\" is for the policy %s", which);
}

/* A policy's numbers, set in C, are in the range of its keys. Those of other policies may be left at 0. */
static wn_status check_fields(wn_context *ctx, const wn_budgets *b, const struct wn_policy_row *row) {
  for (int i = 0; i < row->field_count; i++) {
    const struct wn_field *f = &row->fields[i];
    const char *at = (const char *)b + f->offset;
    if (f->type != WN_FIELD_INT64 && f->type != WN_FIELD_DOUBLE) continue;
    const double value =
        f->type == WN_FIELD_DOUBLE ? *(const double *)(const void *)at : (double)*(const int64_t *)(const void *)at;
    if (value == 0 && row != wn_policy_row(b->policy)) continue;
    if (!(value >= f->min && value <= f->max))
      return wn_fail(ctx, WN_ERR_CONFIG, "budgets: \"%s\" is %g, expected %g to %g", f->key, value, f->min, f->max);
  }
  return WN_OK;
}

wn_status wn_budgets_check(wn_context *ctx, const wn_budgets *b, const wn_model_config *c) {
  const struct wn_policy_row *row = wn_policy_row(b->policy);
  const wn_selective_config *selective = &c->attention.selective;
  if (!row) return wn_fail(ctx, WN_ERR_CONFIG, "budgets: unknown policy %d", (int)b->policy);
  if (b->layers != c->layers)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: %lld of them, the model has %lld layers", (long long)b->layers,
                   (long long)c->layers);
  for (int64_t l = 0; l < b->layers; l++)
    if (b->tokens[l] < 1)
      return wn_fail(ctx, WN_ERR_CONFIG, "budgets: layer %lld has %lld tokens, expected at least 1", (long long)l,
                     (long long)b->tokens[l]);
  WN_TRY(check_heads(ctx, b, c));
  const char *input = wn_attention_input_not_cached(&c->attention);
  if (input)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "budgets: a key-value cache does not keep the input \"%s\"", input);
  WN_TRY(wn_policy_check_needs(ctx, row, WN_POLICY_SERVED, "a key-value cache"));
  if (!wn_policy_suits(b->policy, &c->attention)) return refuse_policy(ctx, b->policy, &c->attention);
  if (b->per_kv_head && !row->info.per_kv_head)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: policy \"%s\" holds the same tokens in all heads: no \"per_kv_head\"",
                   wn_policy_name(b->policy));
  if (b->per_kv_head && selective->enabled && !selective->per_kv_head && c->kv_heads > 1)
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets: \"per_kv_head\" needs \"selective.per_kv_head\" in a model with selective attention: one F "
        "for all heads belongs to tokens that all of them hold");
  if (b->cache_positions && !row->info.cache_positions) return refuse_cache_positions(ctx);
  if (b->cache_positions && c->position != WN_POS_ROPE && !c->attention.relative.enabled &&
      !c->attention.buckets.enabled)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: \"cache_positions\" needs rotary or relative positions, or buckets");
  for (int p = 0; p < wn_policy_count(); p++) WN_TRY(check_fields(ctx, b, wn_policy_row(p)));
  return WN_OK;
}
