/* Budgets of layers and heads, and budgets.json.
 *
 * budgets.json: {"policy": "selective", "tokens": [64, 64, 32, 96], ...}; the other keys are the policies' options. A
 * layer whose key-value heads have budgets of their own has a list instead of a number: [64, [16, 48], ...]. The file
 * may come from anywhere: every number is checked before a byte is allocated for it. */
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
#include "base/misuse.h"
#include "kv/budgets.h"
#include "kv/cache.h"
#include "kv/once.h"
#include "kv/policy.h"

enum { PATH_BYTES = 4096, LAYERS_MAX = 1 << 16, HEADS_MAX = 1 << 16, BUDGETS_MAX = 1 << 20 };

#define AT(member) offsetof(wn_budgets, member)

static const struct wn_field budgets_fields[] = {
    WN_KEY("policy", ENUM, AT(policy), "the policy: which token is evicted", .names = wn_policy_names),
    WN_KEY("per_kv_head", BOOL, AT(per_kv_head), "each key-value head evicts on its own"),
};

static const char *const budgets_whens[] = {"always", "prompt", "hold", "every", NULL};
static const char *const budgets_allots[] = {"uniform", "pyramid", "ada", "tau", "model", NULL};
#define BUDGETS_METHOD(name) #name,
static const char *const budgets_methods[] = {"none", WN_ONCE_METHODS(BUDGETS_METHOD) NULL};
static const struct wn_field budgets_protocol[] = {
    WN_KEY("when", ENUM, AT(when), "when a layer is reduced to its budget", .names = budgets_whens),
    WN_KEY("every", INT64, AT(every), "when every: tokens beyond the budget that may be held", .min = 0,
           .max = 1 << 30),
    WN_KEY("share", DOUBLE, AT(share), "the budget as a share of the tokens read; 0: \"tokens\" are the budgets",
           .min = 0, .max = 1),
    WN_KEY("allot", ENUM, AT(allot), "how a compression divides the budget over layers and heads",
           .names = budgets_allots),
    WN_KEY("tau", DOUBLE, AT(tau), "allot tau: the highest score that stays", .min = -1e300, .max = 1e300),
    WN_KEY("window", INT64, AT(window), "allot tau: so many most recent tokens stay", .min = 0, .max = 1 << 30),
    WN_KEY("method", ENUM, AT(method), "what scores a whole cache in the policy's place", .names = budgets_methods),
    WN_KEY("critical", BOOL, AT(critical), "scores are weighted by the norms of the projected values"),
};

int wn_method_count(void) {
  return 1 + wn_once_count();
}

const char *wn_method_name(int method, const char **summary) {
  const struct wn_once_method *row = wn_once_at(method - 1);
  if (summary) *summary = row ? row->summary : "the policy's own score";
  return method == 0 ? "none" : row ? row->name : NULL;
}

/* Combinations under the names that papers and other programs have for them. */
static const struct {
  const char *name, *policy, *method;
  wn_allot allot;
  bool heads, critical;
} budgets_named[] = {
    {"lagkv", "knorm", "lagkv", WN_ALLOT_UNIFORM, true, false},
    {"expected", "knorm", "expected", WN_ALLOT_UNIFORM, true, false},
    {"observed", "h2o", "observed", WN_ALLOT_UNIFORM, true, false},
    {"leverage", "knorm", "leverage", WN_ALLOT_UNIFORM, true, false},
    {"compactor", "knorm", "compactor", WN_ALLOT_UNIFORM, true, false},
    {"rkv", "knorm", "rkv", WN_ALLOT_UNIFORM, true, false},
    {"pyramidkv", "knorm", "snapkv", WN_ALLOT_PYRAMID, true, false},
    {"ada-snapkv", "knorm", "snapkv", WN_ALLOT_ADA, true, false},
    {"ada-expected", "knorm", "expected", WN_ALLOT_ADA, true, false},
    {"kvzip", "knorm", "kvzip", WN_ALLOT_MODEL, true, false},
    {"critical-snapkv", "knorm", "snapkv", WN_ALLOT_UNIFORM, true, true},
};

const char *wn_budgets_named_at(int i) {
  return i >= 0 && i < (int)(sizeof budgets_named / sizeof *budgets_named) ? budgets_named[i].name : NULL;
}

bool wn_budgets_named(const char *name, wn_budgets *out) {
  WN_CHECK_OR(false, WN_POINTER(name), WN_POINTER(out));
  for (int i = 0; wn_budgets_named_at(i); i++) {
    if (strcmp(name, wn_budgets_named_at(i)) != 0) continue;
    wn_policy_find(NULL, budgets_named[i].policy, &out->policy);
    for (int m = 0; m < wn_method_count(); m++)
      if (!strcmp(wn_method_name(m, NULL), budgets_named[i].method)) out->method = m;
    out->allot = budgets_named[i].allot;
    out->per_kv_head = budgets_named[i].heads;
    out->critical = budgets_named[i].critical;
    return true;
  }
  return false;
}

const char *wn_when_name(wn_when when) {
  return (unsigned)when < WN_WHEN_COUNT ? budgets_whens[when] : "?";
}

enum { GROUPS_MAX = WN_POLICY_MAX + 2 };

/* Field groups: the keys that all policies share, those of protocols, and those of each policy. */
static int budgets_groups(struct wn_field_group out[GROUPS_MAX]) {
  int n = 0;
  out[n++] = (struct wn_field_group){
      .prefix = "", .fields = budgets_fields, .count = (int)(sizeof budgets_fields / sizeof *budgets_fields)};
  out[n++] = (struct wn_field_group){.prefix = "",
                                     .fields = budgets_protocol,
                                     .count = (int)(sizeof budgets_protocol / sizeof *budgets_protocol),
                                     .optional = true};
  for (int p = 0; p < wn_policy_count(); p++) {
    const struct wn_policy_row *row = wn_policy_row(p);
    if (row->field_count > 0)
      out[n++] = (struct wn_field_group){.prefix = "", .fields = row->fields, .count = row->field_count};
  }
  return n;
}

/* The defaults of a file, whose policy is "selective" where it names none. */
static void budgets_defaults(wn_budgets *budgets) {
  *budgets = (wn_budgets){.window = 32};
  for (int p = 0; p < wn_policy_count(); p++)
    if (wn_policy_row(p)->init) wn_policy_row(p)->init(budgets);
}

void wn_budgets_init(wn_budgets *budgets, const wn_attention_config *attention) {
  WN_CHECK_OR(, WN_POINTER(budgets));
  budgets_defaults(budgets);
  const bool selective = attention && wn_policy_suits(budgets->policy, attention);
  if (!selective) (void)wn_policy_find(NULL, "streaming", &budgets->policy);
}

bool wn_budgets_same_options(const wn_budgets *a, const wn_budgets *b) {
  struct wn_field_group groups[GROUPS_MAX];
  const int n = budgets_groups(groups);
  return a->own == b->own && wn_fields_same(groups, n, a, b);
}

void wn_budgets_clear(wn_budgets *budgets) {
  WN_CHECK_OR(, WN_POINTER(budgets));
  wn_free(budgets->tokens);
  wn_free(budgets->head_tokens);
  memset(budgets, 0, sizeof *budgets);
}

int64_t wn_budgets_total(const wn_budgets *budgets) {
  WN_CHECK_OR(0, WN_POINTER(budgets));
  const int64_t n = budgets->heads > 0 ? budgets->heads : 1, half = n / 2;
  const int64_t *tokens = budgets->heads > 0 ? budgets->head_tokens : budgets->tokens;
  int64_t total = 0;
  for (int64_t i = 0; i < budgets->layers * n; i++)
    if (__builtin_add_overflow(total, tokens[i], &total)) return INT64_MAX;
  return total / n + (total % n >= n - half);
}

double wn_budgets_mean(const wn_budgets *budgets) {
  const int64_t n = budgets->layers * (budgets->heads > 0 ? budgets->heads : 1);
  const int64_t *tokens = budgets->heads > 0 ? budgets->head_tokens : budgets->tokens;
  double total = 0;
  for (int64_t i = 0; i < n; i++) total += (double)tokens[i];
  return total / (double)n;
}

int64_t wn_budgets_of(const wn_budgets *budgets, int64_t layer, int64_t kv_head) {
  WN_CHECK_OR(0, WN_POINTER(budgets));
  return budgets->heads > 0 ? budgets->head_tokens[layer * budgets->heads + kv_head] : budgets->tokens[layer];
}

wn_status wn_budgets_resize(wn_context *ctx, int64_t layers, int64_t heads, int64_t value, wn_budgets *out) {
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

void wn_budgets_put(wn_budgets *out, int64_t layer, int64_t head, int64_t tokens) {
  for (int64_t h = 0; h < out->heads; h++)
    if (head < 0 || head == h) out->head_tokens[layer * out->heads + h] = tokens;
  if (tokens > out->tokens[layer]) out->tokens[layer] = tokens;
}

wn_status wn_budgets_copy(wn_context *ctx, const wn_budgets *from, wn_budgets *out) {
  wn_budgets copy = *from;
  copy.tokens = copy.head_tokens = NULL;
  *out = (wn_budgets){0};
  WN_TRY(wn_budgets_resize(ctx, from->layers, from->heads, 0, &copy));
  memcpy(copy.tokens, from->tokens, (size_t)from->layers * sizeof *copy.tokens);
  if (from->heads > 0)
    memcpy(copy.head_tokens, from->head_tokens, (size_t)(from->layers * from->heads) * sizeof *copy.head_tokens);
  *out = copy;
  return WN_OK;
}

wn_status wn_budgets_check_rows(wn_context *ctx, const wn_budgets *budgets) {
  if (budgets->when == WN_WHEN_ALWAYS) return WN_OK;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                 "budgets: \"when\" is \"%s\": whole sequences have no place where a context ends; expected \"always\"",
                 wn_when_name(budgets->when));
}

/* --- files --- */

static wn_status budgets_read_tokens(wn_context *ctx, const char *path, const json_t *list, wn_budgets *out) {
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
  WN_TRY(wn_budgets_resize(ctx, (int64_t)n, (int64_t)heads, 0, out));
  for (size_t l = 0; l < n; l++) {
    const json_t *layer = json_array_get(list, l);
    for (size_t h = 0; h < (json_is_array(layer) ? heads : 1); h++) {
      const json_t *value = json_is_array(layer) ? json_array_get(layer, h) : layer;
      const json_int_t tokens = json_integer_value(value);
      if (!json_is_integer(value) || tokens < 1)
        return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"tokens\"[%zu] must be %s at least 1", path, l,
                       json_is_array(layer) ? "whole numbers of" : "a whole number of");
      wn_budgets_put(out, (int64_t)l, json_is_array(layer) ? (int64_t)h : -1, tokens);
    }
  }
  return WN_OK;
}

static wn_status budgets_read_object(wn_context *ctx, const char *path, json_t *object, wn_budgets *out) {
  if (!json_is_object(object)) return wn_fail(ctx, WN_ERR_CONFIG, "%s: expected an object", path);
  json_t *list = json_object_get(object, "tokens");
  if (!list) return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"tokens\" is missing: a list of budgets, one per layer", path);
  WN_TRY(budgets_read_tokens(ctx, path, list, out));
  json_object_del(object, "tokens");
  struct wn_field_group groups[GROUPS_MAX];
  const int count = budgets_groups(groups);
  return wn_fields_read(ctx, path, object, groups, count, out);
}

/* Reads the object; what it does not give is taken from `otherwise`. */
static wn_status budgets_read_over(wn_context *ctx, const char *path, json_t *object, const wn_budgets *otherwise,
                                   wn_budgets *out) {
  wn_budgets read = *otherwise;
  read.tokens = read.head_tokens = NULL;
  read.layers = read.heads = 0;
  const wn_status status = budgets_read_object(ctx, path, object, &read);
  if (status != WN_OK) {
    wn_budgets_clear(&read);
    return status;
  }
  wn_budgets_clear(out);
  *out = read;
  return WN_OK;
}

wn_status wn_budgets_from_json(wn_context *ctx, const char *path, json_t *object, wn_budgets *out) {
  wn_budgets defaults;
  budgets_defaults(&defaults);
  return budgets_read_over(ctx, path, object, &defaults, out);
}

static wn_status budgets_load(wn_context *ctx, const char *path, const wn_budgets *otherwise, wn_budgets *out) {
  char inside[PATH_BYTES];
  json_t *object;
  if (wn_path_is_dir(path)) {
    WN_TRY(wn_path_join(ctx, inside, sizeof inside, path, "budgets.json"));
    path = inside;
  }
  WN_TRY(wn_json_load_file(ctx, WN_JSON_TABLE, path, &object));
  const wn_status status = budgets_read_over(ctx, path, object, otherwise, out);
  json_decref(object);
  return status;
}

wn_status wn_budgets_load(wn_context *ctx, const char *path, wn_budgets *out) {
  WN_CHECK_CALL(WN_POINTER(path), WN_POINTER(out));
  wn_budgets defaults;
  budgets_defaults(&defaults);
  return budgets_load(ctx, path, &defaults, out);
}

wn_status wn_budgets_load_over(wn_context *ctx, const char *path, wn_budgets *out) {
  const wn_budgets given = *out;
  return budgets_load(ctx, path, &given, out);
}

wn_status wn_budgets_to_json(wn_context *ctx, const wn_budgets *budgets, json_t **out) {
  *out = NULL;
  if (budgets->policy == WN_POLICY_OWN)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "budgets: a file cannot hold a policy of the caller's own");
  json_t *list = json_array();
  bool ok = list != NULL;
  for (int64_t l = 0; ok && l < budgets->layers; l++) {
    json_t *layer = budgets->heads > 0 ? json_array() : json_integer(budgets->tokens[l]);
    ok = json_array_append_new(list, layer) == 0; /* fails on NULL, and takes over `layer` even when it fails */
    for (int64_t h = 0; ok && h < budgets->heads; h++)
      ok = json_array_append_new(layer, json_integer(wn_budgets_of(budgets, l, h))) == 0;
  }
  struct wn_field_group groups[GROUPS_MAX];
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
  WN_CHECK_CALL(WN_POINTER(budgets), WN_POINTER(path));
  json_t *object;
  WN_TRY(wn_budgets_to_json(ctx, budgets, &object));
  const wn_status status = wn_json_save_file(ctx, path, object);
  json_decref(object);
  return status;
}

static wn_status budgets_assign(wn_context *ctx, const char *text, json_t *object, wn_budgets *out) {
  struct wn_field_group groups[GROUPS_MAX];
  const int count = budgets_groups(groups);
  for (const char *at = text;;) {
    char part[PATH_BYTES];
    const size_t n = strcspn(at, ",");
    if (n >= sizeof part) return wn_fail(ctx, WN_ERR_CONFIG, "policy options: a part of %zu bytes is too long", n);
    memcpy(part, at, n);
    part[n] = 0;
    WN_TRY(wn_json_set(ctx, object, part, false));
    if (!at[n]) break;
    at += n + 1;
  }
  return wn_fields_read(ctx, "policy options", object, groups, count, out);
}

wn_status wn_budgets_set(wn_context *ctx, const char *assignments, wn_budgets *out) {
  WN_CHECK_CALL(WN_POINTER(assignments), WN_POINTER(out));
  json_t *object = json_object();
  wn_budgets changed = *out;
  if (!object) return wn_fail(ctx, WN_ERR_MEMORY, "budgets: out of memory");
  const wn_status status = budgets_assign(ctx, assignments, object, &changed);
  json_decref(object);
  if (status == WN_OK) *out = changed;
  return status;
}
