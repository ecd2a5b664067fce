/* Budgets: from a command line, from budgets.json, and whether they go with a model.
 *
 * budgets.json: {"policy": "selective", "tokens": [64, 64, 32, 96], ...}; the other keys are the policy's choices. The
 * file may come from anywhere: every number is checked before a byte is allocated for it. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fields.h"
#include "base/file.h"
#include "kv/budgets.h"
#include "kv/cache.h"
#include "kv/policy.h"

enum { PATH_BYTES = 4096, LAYERS_MAX = 1 << 16 };

#define AT(member) offsetof(wn_budgets, member)
static const char *const policy_names[] = {"selective", "h2o", "tova", "streaming", "window", "random", NULL};
_Static_assert(sizeof policy_names / sizeof *policy_names == WN_POLICY_COUNT + 1, "one name for each policy");

static const struct wn_field fields[] = {
    {"policy", WN_FIELD_ENUM, AT(policy), 0, 0, policy_names, "which token goes"},
    {"per_kv_head", WN_FIELD_BOOL, AT(per_kv_head), 0, 0, NULL, "each key-value head evicts for itself"},
    {"sinks", WN_FIELD_INT64, AT(sinks), 0, 1 << 20, NULL, "streaming: first tokens that stay"},
    {"cache_positions", WN_FIELD_BOOL, AT(cache_positions), 0, 0, NULL, "streaming: positions are places in the cache"},
    {"recent", WN_FIELD_DOUBLE, AT(recent), 0, 1, NULL, "h2o: the part of a budget for the most recent tokens"},
    {"seed", WN_FIELD_UINT64, AT(seed), 0, 18446744073709551615.0, NULL, "random: the seed"},
};
static const struct wn_field_group group = {"", fields, (int)(sizeof fields / sizeof *fields), 0};

void wn_budgets_init(wn_budgets *budgets) {
  *budgets = (wn_budgets){.policy = WN_POLICY_SELECTIVE, .sinks = 4, .recent = 0.5};
}

void wn_budgets_clear(wn_budgets *budgets) {
  wn_free(budgets->tokens);
  memset(budgets, 0, sizeof *budgets);
}

int64_t wn_budgets_total(const wn_budgets *budgets) {
  int64_t total = 0;
  for (int64_t l = 0; l < budgets->layers; l++)
    if (__builtin_add_overflow(total, budgets->tokens[l], &total)) return INT64_MAX;
  return total;
}

/* New tokens in the place of the old ones; all of `value`. */
static wn_status resize(wn_context *ctx, int64_t layers, int64_t value, wn_budgets *out) {
  void *memory;
  WN_TRY(wn_alloc(ctx, "budgets", (size_t)layers * sizeof *out->tokens, &memory));
  wn_free(out->tokens);
  out->tokens = memory;
  out->layers = layers;
  for (int64_t l = 0; l < layers; l++) out->tokens[l] = value;
  return WN_OK;
}

/* --- files --- */

static wn_status read_tokens(wn_context *ctx, const char *path, const json_t *list, wn_budgets *out) {
  if (!json_is_array(list))
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"tokens\" must be a list of budgets, one for each layer", path);
  const size_t n = json_array_size(list);
  if (n < 1 || n > LAYERS_MAX)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"tokens\" has %zu budgets, expected one for each layer", path, n);
  WN_TRY(resize(ctx, (int64_t)n, 0, out));
  for (size_t l = 0; l < n; l++) {
    const json_t *value = json_array_get(list, l);
    const json_int_t tokens = json_integer_value(value);
    if (!json_is_integer(value) || tokens < 1)
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"tokens\"[%zu] must be a whole number of at least 1", path, l);
    out->tokens[l] = tokens;
  }
  return WN_OK;
}

static wn_status read_object(wn_context *ctx, const char *path, json_t *object, wn_budgets *out) {
  if (!json_is_object(object)) return wn_fail(ctx, WN_ERR_CONFIG, "%s: expected an object", path);
  json_t *list = json_object_get(object, "tokens");
  if (!list) return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"tokens\" is missing: a list of budgets, one a layer", path);
  WN_TRY(read_tokens(ctx, path, list, out));
  json_object_del(object, "tokens");
  return wn_fields_read(ctx, path, object, &group, 1, out);
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
  for (int64_t l = 0; ok && l < budgets->layers; l++)
    ok = json_array_append_new(list, json_integer(budgets->tokens[l])) == 0;
  wn_status status = wn_fields_write(ctx, &group, 1, budgets, out);
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
    if (wn_kv_shape_bytes(&shape, &each) && (double)each * (double)c->layers <= bytes)
      low = middle;
    else
      high = middle;
  }
  if (low < 1)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": not enough for one token in each of %lld layers", text,
                   (long long)c->layers);
  return resize(ctx, c->layers, low, out);
}

static wn_status from_list(wn_context *ctx, const wn_model_config *c, const char *text, wn_budgets *out) {
  int64_t count = 1;
  for (const char *p = text; *p; p++) count += *p == ',';
  if (count != c->layers)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": %lld of them, the model has %lld layers", text,
                   (long long)count, (long long)c->layers);
  WN_TRY(resize(ctx, count, 0, out));
  const char *at = text;
  for (int64_t l = 0; l < count; l++) {
    char *end;
    errno = 0;
    const long long tokens = isdigit((unsigned char)*at) ? strtoll(at, &end, 10) : (end = (char *)(uintptr_t)at, 0);
    if (errno || tokens < 1 || *end != (l + 1 < count ? ',' : 0))
      return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": number %lld must be a whole number of at least 1", text,
                     (long long)l + 1);
    out->tokens[l] = tokens;
    at = end + 1;
  }
  return WN_OK;
}

wn_status wn_budgets_parse(wn_context *ctx, const wn_model_config *config, const char *text, wn_budgets *out) {
  const size_t digits = strspn(text, "0123456789."), list = strspn(text, "0123456789,");
  if (list > 0 && text[list] == 0 && strchr(text, ',')) return from_list(ctx, config, text, out);
  double bytes = 0;
  if (digits == 0 || strchr(text, '/') || (text[digits] && !wn_bytes_parse(text, &bytes))) {
    if (wn_path_exists(text)) return wn_budgets_load(ctx, text, out);
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "budgets \"%s\": neither a number (64), a list (64,32), a part of the context (0.25), bytes (2MiB) "
                   "nor a file or folder that is there",
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
    return resize(ctx, config->layers, tokens > 1 ? tokens : 1, out);
  }
  if (!(value >= 1 && value <= 0x1p53))
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets \"%s\": must be at least 1 token", text);
  return resize(ctx, config->layers, (int64_t)value, out);
}

/* --- with a model --- */

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
  if (row->needs_selective && !selective->enabled)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: policy \"%s\" needs a model with selective attention", row->name);
  if (b->per_kv_head && !row->per_kv_head)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: policy \"%s\" holds the same tokens in all heads: no \"per_kv_head\"",
                   row->name);
  if (b->per_kv_head && selective->enabled && !selective->per_kv_head && c->kv_heads > 1)
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets: \"per_kv_head\" needs \"selective.per_kv_head\" in a model with selective attention: one F "
        "for all heads belongs to tokens that all of them hold");
  if (b->cache_positions && b->policy != WN_POLICY_STREAMING)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: \"cache_positions\" is for the policy \"streaming\"");
  if (b->cache_positions && c->position != WN_POS_ROPE && !c->attention.relative.enabled &&
      !c->attention.buckets.enabled)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: \"cache_positions\" needs rotary or relative positions, or buckets");
  if (b->sinks < 0 || b->sinks > 1 << 20)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: \"sinks\" is %lld, expected 0 to %d", (long long)b->sinks, 1 << 20);
  if (!(b->recent >= 0 && b->recent <= 1))
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: \"recent\" is %g, expected 0 to 1", b->recent);
  return WN_OK;
}
