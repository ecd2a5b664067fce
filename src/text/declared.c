/* generation_config.json as transformers reads it, and the keys of GGUF: general.sampling.* and
 * tokenizer.ggml.suppress_tokens are llama.cpp's, winnow.generation.* are for what it has no key for. A key that is
 * null is not declared. Keys for other ways to search or to sample (num_beams, typical_p, ...) are not followed; where
 * one would change a text, a warning says so. */
#include "text/declared.h"

#include <jansson.h>

#include "base/alloc.h"
#include "base/fields.h"
#include "base/limits.h"
#include "base/misuse.h"
#include "base/number.h"
#include "io/folder.h"

enum { PATH_BYTES = 4096, MOST_TOP_K = INT32_MAX };

static const struct {
  const char *json, *gguf;
  unsigned bit;
  size_t at; /* of a double */
  double min, max;
} numbers[] = {
    {"temperature", "general.sampling.temp", WN_DECLARED_TEMPERATURE, offsetof(wn_declared, temperature), 0, 100},
    {"top_p", "general.sampling.top_p", WN_DECLARED_TOP_P, offsetof(wn_declared, top_p), 0, 1},
    {"min_p", "general.sampling.min_p", WN_DECLARED_MIN_P, offsetof(wn_declared, min_p), 0, 1},
    {"repetition_penalty", "general.sampling.penalty_repeat", WN_DECLARED_REPETITION_PENALTY,
     offsetof(wn_declared, repetition_penalty), 0.01, 100},
};
static const struct {
  const char *json, *gguf;
  size_t at, count_at; /* of a pointer; of an int */
} lists[] = {
    {"eos_token_id", "winnow.generation.eos_token_ids", offsetof(wn_declared, ends), offsetof(wn_declared, end_count)},
    {"suppress_tokens", "tokenizer.ggml.suppress_tokens", offsetof(wn_declared, suppressed),
     offsetof(wn_declared, suppressed_count)},
    {"begin_suppress_tokens", "winnow.generation.begin_suppress_tokens", offsetof(wn_declared, suppressed_first),
     offsetof(wn_declared, suppressed_first_count)},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers, LISTS = sizeof lists / sizeof *lists, ENDS = 0, SUPPRESSED = 1 };
#define TOP_K_GGUF "general.sampling.top_k"
#define DO_SAMPLE_GGUF "winnow.generation.do_sample"

/* Keys that are not followed, and the number with which they change nothing; likewise false and what is empty. */
static const struct unfollowed {
  const char *key;
  double none;
} unfollowed_json[] = {{"num_beams", 1},
                       {"typical_p", 1},
                       {"epsilon_cutoff", 0},
                       {"eta_cutoff", 0},
                       {"top_h", 1},
                       {"penalty_alpha", 0},
                       {"guidance_scale", 1},
                       {"no_repeat_ngram_size", 0},
                       {"min_length", 0},
                       {"min_new_tokens", 0},
                       {"forced_bos_token_id", -1},
                       {"forced_eos_token_id", -1},
                       {"stop_strings", 0},
                       {"sequence_bias", 0},
                       {"exponential_decay_length_penalty", 0},
                       {"watermarking_config", 0}},
  unfollowed_gguf[] = {{"general.sampling.mirostat", 0}, {"general.sampling.xtc_probability", 0}};

static double *declared_number(const wn_declared *d, int i) {
  return (double *)(void *)((char *)(uintptr_t)d + numbers[i].at);
}
static int32_t **declared_list(const wn_declared *d, int i, int **count) {
  *count = (int *)(void *)((char *)(uintptr_t)d + lists[i].count_at);
  return (int32_t **)(void *)((char *)(uintptr_t)d + lists[i].at);
}

void wn_declared_clear(wn_declared *d) {
  int *count;
  for (int i = 0; i < LISTS; i++) wn_free(*declared_list(d, i, &count));
  *d = (wn_declared){0};
}

/* Makes room for `more` ids in a list. */
static wn_status declared_grow(wn_context *ctx, wn_declared *d, int i, size_t more) {
  int *count;
  int32_t **list = declared_list(d, i, &count);
  return WN_RESIZE(ctx, "declared tokens", list, *count, (size_t)*count + more);
}

enum { COMPARED = 256 }; /* ids that are compared, so that a long list takes no quadratic time */

/* Adds an id, once; negative ones stand for none. */
static void declared_add(wn_declared *d, int i, int64_t id) {
  int *count;
  int32_t *list = *declared_list(d, i, &count);
  if (id < 0 || id > INT32_MAX) return;
  for (int k = 0; k < *count && k < COMPARED; k++)
    if (list[k] == id) return;
  list[(*count)++] = (int32_t)id;
}

void wn_declared_limit(wn_declared *d, int64_t entries) {
  for (int i = 0; i < LISTS; i++) {
    int *count, kept = 0;
    int32_t *list = *declared_list(d, i, &count);
    for (int k = 0; k < *count; k++)
      if (list[k] < entries) list[kept++] = list[k];
    *count = kept;
  }
}

bool wn_declared_is_end(const wn_declared *d, int32_t id) {
  for (int i = 0; i < d->end_count; i++)
    if (d->ends[i] == id) return true;
  return false;
}

bool wn_declared_any(const wn_declared *d) {
  return d->end_count || d->suppressed_count || d->suppressed_first_count || d->given;
}

bool wn_declared_temperature(const wn_declared *d, double *out) {
  const bool greedy = (d->given & WN_DECLARED_DO_SAMPLE) && !d->do_sample;
  *out = greedy ? 0 : d->temperature;
  return greedy || (d->given & WN_DECLARED_TEMPERATURE);
}

/* ---- JSON ---- */

static wn_status declared_read_ids(wn_context *ctx, const char *where, const json_t *object, int i, wn_declared *d) {
  const json_t *value = json_object_get(object, lists[i].json);
  const size_t n = json_is_array(value) ? json_array_size(value) : 1;
  if (!value || json_is_null(value)) return WN_OK;
  WN_TRY(declared_grow(ctx, d, i, n));
  for (size_t k = 0; k < n; k++) {
    const json_t *id = json_is_array(value) ? json_array_get(value, k) : value;
    if (!json_is_integer(id))
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"%s\" is neither a token nor a list of tokens", where, lists[i].json);
    declared_add(d, i, json_integer_value(id));
  }
  return WN_OK;
}

/* Sequences of tokens that may not be drawn: those of one token are suppressed. */
static wn_status declared_read_bad_words(wn_context *ctx, const char *where, const json_t *object, wn_declared *d) {
  const json_t *words = json_object_get(object, "bad_words_ids");
  const size_t n = json_array_size(words);
  if (!words || json_is_null(words)) return WN_OK;
  WN_TRY(declared_grow(ctx, d, SUPPRESSED, n));
  for (size_t k = 0; k < n; k++) {
    const json_t *word = json_array_get(words, k), *id = json_array_get(word, 0);
    if (json_array_size(word) == 1 && json_is_integer(id))
      declared_add(d, SUPPRESSED, json_integer_value(id));
    else
      wn_log(ctx, WN_LOG_WARNING, "%s: \"bad_words_ids\"[%zu] is no single token; it is not forbidden", where, k);
  }
  return WN_OK;
}

static void declared_warn(wn_context *ctx, const char *where, const char *key) {
  wn_log(ctx, WN_LOG_WARNING, "%s: \"%s\" is not followed", where, key);
}

static void declared_name_unfollowed(wn_context *ctx, const char *where, const json_t *object) {
  for (size_t i = 0; i < sizeof unfollowed_json / sizeof *unfollowed_json; i++) {
    const struct unfollowed *u = &unfollowed_json[i];
    const json_t *value = json_object_get(object, u->key);
    const bool empty = json_is_array(value) || json_is_object(value)
                           ? json_array_size(value) + json_object_size(value) == 0
                           : !value || json_is_null(value) || json_is_false(value);
    if (!empty && !(json_is_number(value) && json_number_value(value) == u->none)) declared_warn(ctx, where, u->key);
  }
}

static wn_status declared_read_json(wn_context *ctx, const char *where, const json_t *object, wn_declared *d) {
  declared_name_unfollowed(ctx, where, object);
  for (int i = 0; i < LISTS; i++) WN_TRY(declared_read_ids(ctx, where, object, i, d));
  WN_TRY(declared_read_bad_words(ctx, where, object, d));
  for (int i = 0; i < NUMBERS; i++) {
    const json_t *value = json_object_get(object, numbers[i].json);
    const double x = json_number_value(value);
    if (!value || json_is_null(value)) continue;
    if (!json_is_number(value) || !(x >= numbers[i].min && x <= numbers[i].max))
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"%s\" is not a number from %g to %g", where, numbers[i].json,
                     numbers[i].min, numbers[i].max);
    *declared_number(d, i) = x;
    d->given |= numbers[i].bit;
  }
  const json_t *k = json_object_get(object, "top_k"), *sample = json_object_get(object, "do_sample");
  if (k && !json_is_null(k)) {
    if (!json_is_integer(k) || json_integer_value(k) > MOST_TOP_K)
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"top_k\" is not a whole number up to %d", where, MOST_TOP_K);
    d->top_k = json_integer_value(k) > 0 ? json_integer_value(k) : 0;
    d->given |= WN_DECLARED_TOP_K;
  }
  if (sample && !json_is_null(sample)) {
    if (!json_is_boolean(sample))
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"do_sample\" is neither true nor false", where);
    d->do_sample = json_is_true(sample);
    d->given |= WN_DECLARED_DO_SAMPLE;
  }
  return WN_OK;
}

static wn_status declared_load(wn_context *ctx, const char *dir, const char *name, char where[PATH_BYTES],
                               json_t **out) {
  *out = NULL;
  if (!wn_folder_has(dir, name)) return WN_OK;
  WN_TRY(wn_folder_file(ctx, where, PATH_BYTES, dir, name));
  WN_TRY(wn_json_load_file(ctx, WN_JSON_CONFIG, where, out));
  return json_is_object(*out) ? WN_OK : wn_fail(ctx, WN_ERR_CONFIG, "%s: expected a JSON object", where);
}

wn_status wn_declared_read(wn_context *ctx, const char *dir, wn_declared *d) {
  char where[PATH_BYTES], config_where[PATH_BYTES];
  json_t *own = NULL, *config = NULL;
  *d = (wn_declared){0};
  wn_status status = declared_load(ctx, dir, WN_DECLARED_FILE, where, &own);
  if (status == WN_OK && own) status = declared_read_json(ctx, where, own, d);
  const bool ends = own && json_object_get(own, lists[ENDS].json);
  if (status == WN_OK && !ends) status = declared_load(ctx, dir, "config.json", config_where, &config);
  if (!json_object_get(config, "model_type") && !json_object_get(config, "architectures")) { /* winnow's own */
    json_decref(config);
    config = NULL;
  }
  if (status == WN_OK && config)
    status =
        own ? declared_read_ids(ctx, config_where, config, ENDS, d) : declared_read_json(ctx, config_where, config, d);
  json_decref(own);
  json_decref(config);
  return status;
}

static json_t *declared_ids(const int32_t *list, int count) {
  json_t *ids = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(ids, json_integer(list[i]));
  return ids;
}

static json_t *declared_object(const wn_declared *d) {
  json_t *o = json_object();
  for (int i = 0; i < LISTS; i++) {
    int *count;
    int32_t *const *list = declared_list(d, i, &count);
    if (*count > 0) json_object_set_new(o, lists[i].json, declared_ids(*list, *count));
  }
  if (d->given & WN_DECLARED_DO_SAMPLE) json_object_set_new(o, "do_sample", json_boolean(d->do_sample));
  for (int i = 0; i < NUMBERS; i++)
    if (d->given & numbers[i].bit) json_object_set_new(o, numbers[i].json, json_real(*declared_number(d, i)));
  if (d->given & WN_DECLARED_TOP_K) json_object_set_new(o, "top_k", json_integer(d->top_k));
  return o;
}

wn_status wn_declared_json(wn_context *ctx, const wn_declared *d, char **out) {
  WN_CHECK_CALL(WN_POINTER_AS("declared", d), WN_POINTER(out));
  json_t *o = declared_object(d);
  *out = NULL;
  const wn_status status = o ? wn_json_text(ctx, o, out) : wn_fail(ctx, WN_ERR_MEMORY, "out of memory");
  json_decref(o);
  return status;
}

wn_status wn_declared_write(wn_context *ctx, const wn_declared *d, int64_t bos, const char *path) {
  json_t *o = declared_object(d);
  double temperature;
  json_object_set_new(o, "bos_token_id", bos >= 0 ? json_integer(bos) : json_null());
  if (d->end_count == 0) json_object_set_new(o, lists[ENDS].json, json_null());
  for (int i = 0; i < NUMBERS; i++) /* transformers refuses a temperature of 0 */
    if (!(*declared_number(d, i) > 0)) json_object_del(o, numbers[i].json);
  if (wn_declared_temperature(d, &temperature) && temperature == 0) json_object_set_new(o, "do_sample", json_false());
  const wn_status status = o ? wn_json_save_file(ctx, path, o) : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", path);
  json_decref(o);
  return status;
}

/* ---- GGUF ---- */

static wn_status declared_gguf_ids(wn_context *ctx, const char *where, const wn_gguf *file, const char *key, int i,
                                   wn_declared *d) {
  const wn_gguf_value *v = wn_gguf_value_find(file, key);
  const uint64_t n = !v ? 0 : v->is_array ? v->count : 1;
  int64_t id;
  if (n == 0) return WN_OK;
  if (n > WN_LIMIT_DECLARED)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %s has %llu tokens, at most %zu", where, key, (unsigned long long)n,
                   WN_LIMIT_DECLARED);
  WN_TRY(declared_grow(ctx, d, i, (size_t)n));
  for (uint64_t k = 0; k < n; k++) {
    if (!wn_gguf_value_int(v, k, &id)) return wn_fail(ctx, WN_ERR_FORMAT, "%s: %s is not a whole number", where, key);
    declared_add(d, i, id);
  }
  return WN_OK;
}

wn_status wn_declared_read_gguf(wn_context *ctx, const char *where, const wn_gguf *file, wn_declared *d) {
  static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"};
  *d = (wn_declared){0};
  for (size_t i = 0; i < sizeof unfollowed_gguf / sizeof *unfollowed_gguf; i++) {
    const wn_gguf_value *v = wn_gguf_value_find(file, unfollowed_gguf[i].key);
    int64_t n = 0;
    double x = 0;
    const bool known = v && !v->is_array && (wn_gguf_value_float(v, 0, &x) || wn_gguf_value_int(v, 0, &n));
    if (v && !(known && x + (double)n == unfollowed_gguf[i].none)) declared_warn(ctx, where, unfollowed_gguf[i].key);
  }
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) WN_TRY(declared_gguf_ids(ctx, where, file, ends[i], ENDS, d));
  for (int i = 0; i < LISTS; i++) WN_TRY(declared_gguf_ids(ctx, where, file, lists[i].gguf, i, d));
  for (int i = 0; i < NUMBERS; i++) {
    const wn_gguf_value *v = wn_gguf_value_find(file, numbers[i].gguf);
    double x;
    if (!v) continue;
    if (v->is_array || !wn_gguf_value_float(v, 0, &x) || !(x >= numbers[i].min && x <= numbers[i].max))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: %s is not a number from %g to %g", where, numbers[i].gguf, numbers[i].min,
                     numbers[i].max);
    *declared_number(d, i) = v->width == 4 ? wn_number_decimal((float)x) : x;
    d->given |= numbers[i].bit;
  }
  const wn_gguf_value *k = wn_gguf_value_find(file, TOP_K_GGUF), *sample = wn_gguf_value_find(file, DO_SAMPLE_GGUF);
  int64_t x = 0;
  if (k && (k->is_array || !wn_gguf_value_int(k, 0, &x) || x > MOST_TOP_K))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %s is not a whole number up to %d", where, TOP_K_GGUF, MOST_TOP_K);
  if (k) d->top_k = x > 0 ? x : 0, d->given |= WN_DECLARED_TOP_K;
  if (sample && (sample->is_array || !wn_gguf_value_int(sample, 0, &x)))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %s is neither true nor false", where, DO_SAMPLE_GGUF);
  if (sample) d->do_sample = x != 0, d->given |= WN_DECLARED_DO_SAMPLE;
  return WN_OK;
}

void wn_declared_put(const wn_declared *d, int64_t context, wn_gguf_values *values) {
  double temperature;
  const bool told = wn_declared_temperature(d, &temperature);
  for (int i = 0; i < LISTS; i++) {
    int *count;
    int32_t *const *list = declared_list(d, i, &count);
    const bool told_already = i == ENDS && *count == 1 && wn_gguf_values_has(values, "tokenizer.ggml.eos_token_id");
    if (*count > 0 && !told_already) wn_gguf_values_put_ints(values, lists[i].gguf, *list, (uint64_t)*count);
  }
  for (int i = 0; i < NUMBERS; i++)
    if ((d->given & numbers[i].bit) && numbers[i].bit != WN_DECLARED_TEMPERATURE)
      wn_gguf_values_put_float(values, numbers[i].gguf, (float)*declared_number(d, i));
  if (told) wn_gguf_values_put_float(values, numbers[0].gguf, (float)temperature);
  if (d->given & WN_DECLARED_REPETITION_PENALTY) /* of the whole text, not of llama.cpp's last 64 tokens */
    wn_gguf_values_put_uint(values, "general.sampling.penalty_last_n", (uint32_t)context);
  if (d->given & WN_DECLARED_TOP_K) wn_gguf_values_put_uint(values, TOP_K_GGUF, (uint32_t)d->top_k);
  if (d->given & WN_DECLARED_DO_SAMPLE) wn_gguf_values_put_bool(values, DO_SAMPLE_GGUF, d->do_sample);
}
