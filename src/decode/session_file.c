/* States of sessions in files (wn_session_save), and sessions that are cut back.
 *
 * A file is safetensors with checksums (io/checksum.h). Its metadata have two JSON objects: "winnow.session", with what
 * a session must have been created that takes the state over, key by key; "winnow.state", how much it holds. Tensors:
 *   part.N     bytes: the cache of part N, laid out as one that has room for just the tokens held (kv/cache.h)
 *   part.N.at  positions of these tokens, where the cache has positions
 *   state      bytes: the final norm's output at the last position
 *   text, control, marks   where the session has them: the text, control tokens so far, marks by position
 * Whatever is read is checked before the session changes. Saving and loading take the memory of one part's tokens. */
#include <stdio.h>
#include <string.h>

#include "base/fields.h"
#include "base/fingerprint.h"
#include "base/misuse.h"
#include "decode/session.h"
#include "kv/budgets.h"
#include "model/config.h"

/* What a session holds, beside the arrays. */
struct held {
  int64_t position, n;       /* n: parts */
  int64_t *count, *capacity; /* [n] tokens of each cache, and its room */
  struct wn_pins pins;
  bool compressed, stretched;
};

/* A tensor: rows of bytes that lie `stride` apart, or a cache. */
struct item {
  char name[40];
  char *at;
  int64_t rows;
  size_t row, stride;
  struct wn_kv_cache *cache; /* NULL: rows */
  bool device;               /* in the backend's memory */
};

struct file {
  wn_context *ctx;
  const char *path;
  wn_session *s;
  struct held held;
  struct item *items; /* [count] */
  int count;
};

static void file_clear(struct file *f) {
  wn_free(f->held.count);
  wn_free(f->held.capacity);
  wn_free(f->items);
}

static wn_status file_open(wn_context *ctx, const char *path, wn_session *s, struct file *out) {
  const int64_t n = s->first[s->model->config.layers];
  *out = (struct file){.ctx = ctx, .path = path, .s = s, .held.n = n};
  if (s->inputs.S > 0 || s->once)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "session: a file does not hold %s",
                   s->once ? "what a method collects that scores a whole cache" : "what an encoder has read");
  WN_TRY(WN_ALLOC(ctx, "a session's file", n, &out->held.count));
  WN_TRY(WN_ALLOC(ctx, "a session's file", n, &out->held.capacity));
  return WN_ALLOC(ctx, "a session's file", 3 * n + 4, &out->items);
}

/* A cache of the shape of part i with room for just the tokens held; *bytes (may be NULL): in the backend's memory. */
static wn_status file_shape(const struct file *f, int64_t i, struct wn_kv_shape *out, size_t *bytes) {
  size_t all, host;
  *out = f->s->caches[i].shape;
  out->capacity = f->held.count[i];
  if (!wn_kv_shape_bytes(out, &all, &host)) return WN_ERR_ARGUMENT; /* cannot be: it is no larger than the session's */
  if (bytes) *bytes = all - host;
  return WN_OK;
}

static void item_add(struct file *f, const char *name, void *at, int64_t rows, size_t row, size_t stride) {
  struct item *item = &f->items[f->count];
  if (!at) return;
  *item = (struct item){.at = at, .rows = rows, .row = row, .stride = stride};
  snprintf(item->name, sizeof item->name, "%s", name);
  f->count++;
}

/* Lists the tensors of what is held. */
static wn_status file_list(struct file *f) {
  wn_session *s = f->s;
  const size_t n = (size_t)f->held.position, all = (size_t)s->capacity, C = (size_t)s->model->config.width;
  char name[40];
  f->count = 0;
  for (int64_t i = 0; i < f->held.n; i++) {
    struct wn_kv_cache *cache = &s->caches[i];
    struct wn_kv_shape shape;
    size_t bytes;
    WN_TRY(file_shape(f, i, &shape, &bytes));
    snprintf(name, sizeof name, "part.%lld", (long long)i);
    item_add(f, name, cache->k, 1, bytes, bytes);
    f->items[f->count - 1].cache = cache;
    snprintf(name, sizeof name, "part.%lld.at", (long long)i);
    item_add(f, name, cache->at, s->B * shape.groups, (size_t)f->held.count[i] * sizeof *cache->at,
             (size_t)cache->shape.capacity * sizeof *cache->at);
    const size_t sums = wn_kv_sums_bytes(&shape);
    snprintf(name, sizeof name, "part.%lld.sums", (long long)i); /* after the cache, which sets them where it can */
    item_add(f, name, cache->total, 1, sums, sums);
    if (cache->total) f->items[f->count - 1].device = true;
  }
  const size_t bytes = (size_t)s->B * C * wn_dtype_size(s->model->dtype);
  item_add(f, "state", s->state, 1, bytes, bytes);
  f->items[f->count - 1].device = true;
  item_add(f, "text", s->history, s->B, n * sizeof *s->history, all * sizeof *s->history);
  item_add(f, "control", s->control, s->B, n, all);
  item_add(f, "marks", s->marks, s->B, all, all);
  return WN_OK;
}

/* --- what a session is, and what it holds, as JSON --- */

static wn_status file_identity(const struct file *f, json_t **out) {
  const wn_session *s = f->s;
  char *config, weights[24], form[24];
  json_t *budgets = json_null();
  WN_TRY(wn_model_fingerprint(s->model, weights));
  WN_TRY(wn_model_config_json(f->ctx, &s->model->config, &config));
  wn_fingerprint(config, strlen(config), form);
  wn_free(config);
  if (s->budgets.layers > 0) WN_TRY(wn_budgets_to_json(f->ctx, &s->budgets, &budgets));
  json_t *caches = json_array();
  for (int64_t i = 0; i < f->held.n; i++) {
    const struct wn_session_part *part = &s->parts[i];
    json_array_append_new(caches, json_pack("[I, I, I, i]", (json_int_t)part->layer, (json_int_t)part->kv0,
                                            (json_int_t)part->kv_heads, (int)part->kind));
  }
  const bool tau = s->attention.threshold.enabled;
  *out =
      json_pack("{s:i, s:s, s:s, s:I, s:s, s:f, s:b, s:b, s:I, s:o, s:o}", "version", 1, "weights", weights,
                "configuration", form, "sequences", (json_int_t)s->B, "cache", wn_cache_format_name(s->cache), "tau",
                tau ? s->attention.threshold.tau : 0, "control", s->control != NULL, "control_marks", s->marks != NULL,
                "dynamic", (json_int_t)wn_session_dynamic_rows(s), "budgets", budgets, "caches", caches);
  return *out ? WN_OK : wn_fail(f->ctx, WN_ERR_MEMORY, "session: no memory for the description of a state");
}

static wn_status file_describe(const struct held *held, json_t **out) {
  json_t *counts = json_array(), *capacities = json_array(), *pins = json_array();
  for (int64_t i = 0; i < held->n; i++) {
    json_array_append_new(counts, json_integer(held->count[i]));
    json_array_append_new(capacities, json_integer(held->capacity[i]));
  }
  for (int i = 0; i < held->pins.count; i++)
    json_array_append_new(pins, json_pack("[i, i]", held->pins.of[i].first, held->pins.of[i].end));
  *out = json_pack("{s:I, s:b, s:b, s:o, s:o, s:o}", "position", (json_int_t)held->position, "compressed",
                   held->compressed, "stretched", held->stretched, "counts", counts, "capacities", capacities, "pins",
                   pins);
  return *out ? WN_OK : WN_ERR_MEMORY;
}

/* Compares what the file's session was created with. */
static wn_status file_compare(const struct file *f, const json_t *found) {
  json_t *expected;
  const char *key;
  json_t *value;
  WN_TRY(file_identity(f, &expected));
  wn_status status = WN_OK;
  json_object_foreach(expected, key, value) {
    const json_t *other = json_object_get(found, key);
    if (status != WN_OK || json_equal(value, other)) continue;
    char *a = other ? json_dumps(other, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    char *b = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    status = wn_fail(f->ctx, WN_ERR_CONFIG,
                     "%s: \"%s\" of the session that was saved is %.100s, of this one %.100s: expected the same model, "
                     "loaded in the same way, and the same options",
                     f->path, key, a ? a : "missing", b ? b : "?");
    free(a), free(b);
  }
  json_decref(expected);
  return status;
}

/* A list [n] of numbers from low to high[i]. */
static bool file_numbers(const json_t *list, int64_t n, int64_t low, int64_t high, int64_t *out) {
  if (!json_is_array(list) || (int64_t)json_array_size(list) != n) return false;
  for (int64_t i = 0; i < n; i++) {
    const json_t *one = json_array_get(list, (size_t)i);
    if (!json_is_integer(one) || json_integer_value(one) < low || json_integer_value(one) > high) return false;
    out[i] = json_integer_value(one);
  }
  return true;
}

static bool file_pins(const json_t *list, int64_t capacity, struct wn_pins *out) {
  int64_t pin[2], last = -1;
  if (!json_is_array(list) || json_array_size(list) > WN_PINS) return false;
  for (size_t i = 0; i < json_array_size(list); i++) {
    if (!file_numbers(json_array_get(list, i), 2, last + 1, capacity, pin) || pin[1] <= pin[0]) return false;
    out->of[out->count++] = (struct wn_pin){(int32_t)pin[0], (int32_t)pin[1]};
    last = pin[1];
  }
  return true;
}

/* Reads what is held; false: no session can hold it. */
static bool file_read_held(struct file *f, json_t *found) {
  const wn_session *s = f->s;
  struct held *held = &f->held;
  json_int_t position;
  int compressed, stretched;
  json_t *counts, *capacities, *pins;
  if (json_unpack(found, "{s:I, s:b, s:b, s:o, s:o, s:o!}", "position", &position, "compressed", &compressed,
                  "stretched", &stretched, "counts", &counts, "capacities", &capacities, "pins", &pins))
    return false;
  held->position = position, held->compressed = compressed, held->stretched = stretched;
  if (position < 1 || position > s->capacity || (stretched && !s->history)) return false;
  if (compressed && (s->budgets.when == WN_WHEN_ALWAYS || s->budgets.when == WN_WHEN_EVERY)) return false;
  if (!file_numbers(counts, held->n, 1, position, held->count) ||
      !file_numbers(capacities, held->n, 1, s->capacity, held->capacity) || !file_pins(pins, s->capacity, &held->pins))
    return false;
  wn_budgets pinned = s->budgets;
  pinned.pins = &held->pins;
  for (int64_t i = 0; i < held->n; i++) {
    const bool evicts = s->parts[i].kind == WN_LAYER_BUDGET;
    if (!s->caches[i].at && held->count[i] != position) return false;
    if (wn_session_follows(s, i)) {
      if (!compressed || s->budgets.when == WN_WHEN_PROMPT) held->capacity[i] = wn_session_room(s, held->count[i]);
    } else if (s->caches[i].shape.capacity != held->capacity[i] && evicts) {
      return false;
    } else {
      held->capacity[i] = s->caches[i].shape.capacity;
    }
    if (held->count[i] > held->capacity[i]) return false;
    if (evicts && held->pins.count > 0 && wn_policy_stay(&pinned, held->capacity[i]) >= held->capacity[i]) return false;
  }
  return true;
}

/* --- saving --- */

/* Fills tensor i of the file. */
static wn_status file_produce(void *user, int i, void *out, size_t bytes) {
  const struct file *f = user;
  const struct item *item = &f->items[i];
  const struct wn_memory *memory = f->s->model->backend->memory;
  struct wn_kv_cache packed;
  struct wn_kv_shape shape;
  if (item->device) return wn_memory_read(f->ctx, memory, out, item->at, bytes);
  if (!item->cache) {
    for (int64_t r = 0; r < item->rows; r++)
      memcpy((char *)out + (size_t)r * item->row, item->at + (size_t)r * item->stride, item->row);
    return WN_OK;
  }
  WN_TRY(file_shape(f, item->cache - f->s->caches, &shape, NULL));
  WN_TRY(wn_kv_cache_init(f->ctx, &shape, &packed));
  wn_status status = wn_kv_cache_copy(f->ctx, item->cache, shape.capacity, NULL, &packed);
  if (status == WN_OK) status = wn_memory_read(f->ctx, memory, out, packed.k, bytes);
  wn_kv_cache_clear(&packed);
  return status;
}

static wn_status file_write(struct file *f) {
  json_t *session = NULL, *state = NULL;
  char *texts[2] = {NULL, NULL};
  wn_safetensors_entry *entries;
  WN_TRY(WN_ALLOC(f->ctx, "a session's file", f->count, &entries));
  for (int i = 0; i < f->count; i++) {
    const size_t bytes = (size_t)f->items[i].rows * f->items[i].row;
    entries[i] = (wn_safetensors_entry){
        .name = f->items[i].name, .dtype = WN_U8, .ndim = 1, .shape = {(int64_t)bytes}, .bytes = bytes};
  }
  wn_status status = file_identity(f, &session);
  if (status == WN_OK) status = file_describe(&f->held, &state);
  if (status == WN_OK) status = wn_json_text(f->ctx, session, &texts[0]);
  if (status == WN_OK) status = wn_json_text(f->ctx, state, &texts[1]);
  if (status == WN_OK) {
    const char *metadata[] = {"winnow.session", texts[0], "winnow.state", texts[1], NULL};
    status = wn_safetensors_write_made(f->ctx, f->path, entries, f->count, metadata, file_produce, f);
  }
  json_decref(session), json_decref(state);
  wn_free(texts[0]), wn_free(texts[1]);
  wn_free(entries);
  return status;
}

wn_status wn_session_save(wn_context *ctx, const wn_session *session, const char *path) {
  WN_CHECK_WORK(WN_HANDLE(session, SESSION), WN_POINTER(path));
  wn_session *s = (wn_session *)(uintptr_t)session; /* const: only what the host knows of positions changes */
  struct file f;
  if (s->position == 0 || s->broken || s->cut)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: there is no state to save: %s",
                   s->broken          ? "its last feed failed"
                   : s->position == 0 ? "nothing has been fed"
                                      : "it was cut, and nothing has been fed since");
  wn_status status = file_open(ctx, path, s, &f);
  struct held *held = &f.held;
  held->position = s->position, held->pins = s->pins;
  held->compressed = s->compressed, held->stretched = s->stretched;
  for (int64_t i = 0; status == WN_OK && i < held->n; i++) {
    held->count[i] = s->caches[i].count, held->capacity[i] = s->caches[i].shape.capacity;
    status = wn_kv_cache_positions(ctx, &s->caches[i]);
  }
  if (status == WN_OK) status = file_list(&f);
  if (status == WN_OK) status = file_write(&f);
  file_clear(&f);
  return status;
}

/* --- loading --- */

/* Positions of a cache's group: within the text, none twice. *sorted: in order. */
static bool file_check_positions(const int32_t *at, int64_t count, int64_t position, uint8_t *seen, bool *sorted) {
  memset(seen, 0, (size_t)position);
  for (int64_t j = 0; j < count; j++) {
    if (at[j] < 0 || at[j] >= position || seen[at[j]]++) return false;
    *sorted = *sorted && (j == 0 || at[j] > at[j - 1]);
  }
  return true;
}

/* Checks every tensor of the list. */
static wn_status file_check(const struct file *f, const wn_safetensors *from) {
  uint8_t *seen;
  int32_t *at = NULL;
  wn_status status = WN_OK;
  if (wn_safetensors_count(from) != f->count)
    return wn_fail(f->ctx, WN_ERR_FORMAT, "%s: %d tensors, expected %d", f->path, wn_safetensors_count(from), f->count);
  WN_TRY(WN_ALLOC(f->ctx, "positions of a file", f->held.position, &seen));
  WN_TRY_GOTO(WN_ALLOC(f->ctx, "positions of a file", f->held.position, &at), done);
  for (int i = 0; i < f->count && status == WN_OK; i++) {
    const struct item *item = &f->items[i];
    const wn_safetensors_entry *e = wn_safetensors_find(from, item->name);
    const bool text = item->at == (char *)f->s->history, positions = strstr(item->name, ".at") != NULL;
    const bool marks = item->at == (char *)f->s->marks && item->at;
    if (!e || e->dtype != WN_U8 ||
        (marks ? e->bytes % (size_t)item->rows : e->bytes != (size_t)item->rows * item->row)) {
      status = wn_fail(f->ctx, WN_ERR_FORMAT, "%s: tensor %s is missing or has another size, expected %zu bytes",
                       f->path, item->name, (size_t)item->rows * item->row);
      break;
    }
    for (int64_t r = 0; r < item->rows && status == WN_OK && (text || positions); r++) {
      const int64_t n = (int64_t)(item->row / sizeof *at);
      bool sorted = true;
      memcpy(at, (const char *)e->data + (size_t)r * item->row, item->row);
      if (text) status = wn_model_check_ids(f->ctx, f->s->model, "session: token", at, n);
      if (positions && !file_check_positions(at, n, f->held.position, seen, &sorted))
        status = wn_fail(f->ctx, WN_ERR_FORMAT, "%s: tensor %s has a position twice or beyond %lld tokens", f->path,
                         item->name, (long long)f->held.position);
    }
  }
done:
  wn_free(seen);
  wn_free(at);
  return status;
}

/* Fills part i's cache from its tensors. */
static wn_status file_fill_cache(const struct file *f, const wn_safetensors *from, const struct item *item) {
  const int64_t i = item->cache - f->s->caches;
  struct wn_kv_cache packed;
  struct wn_kv_shape shape;
  char name[sizeof item->name + 3];
  size_t bytes;
  WN_TRY(file_shape(f, i, &shape, &bytes));
  WN_TRY(wn_kv_cache_init(f->ctx, &shape, &packed));
  const wn_safetensors_entry *image = wn_safetensors_find(from, item->name);
  wn_status status = f->s->model->backend->memory->copy_in(f->ctx, packed.k, image->data, bytes);
  packed.count = f->held.count[i];
  packed.seen = f->held.position;
  if (packed.at) {
    snprintf(name, sizeof name, "%s.at", item->name);
    const wn_safetensors_entry *at = wn_safetensors_find(from, name);
    memcpy(packed.at, at->data, at->bytes);
    for (int64_t j = 0; j < shape.B * shape.groups * packed.count; j++)
      packed.sorted = packed.sorted && (j % packed.count == 0 || packed.at[j] > packed.at[j - 1]);
  }
  if (status == WN_OK) status = wn_kv_cache_copy(f->ctx, &packed, packed.count, NULL, item->cache);
  wn_kv_cache_clear(&packed);
  return status;
}

/* Puts what was checked into the session. */
static wn_status file_take(struct file *f, const wn_safetensors *from) {
  wn_session *s = f->s;
  const struct held *held = &f->held;
  wn_session_reset(s);
  s->broken = true; /* until all of it is there */
  s->pins = held->pins;
  s->compressed = held->compressed, s->stretched = held->stretched;
  for (int64_t i = 0; i < held->n; i++) WN_TRY(wn_session_set_capacity(s, i, held->capacity[i]));
  WN_TRY(file_list(f)); /* the caches may be others now */
  for (int i = 0; i < f->count; i++) {
    const struct item *item = &f->items[i];
    const wn_safetensors_entry *e = wn_safetensors_find(from, item->name);
    const size_t stored = e->bytes / (size_t)item->rows, row = stored < item->row ? stored : item->row;
    if (item->cache) WN_TRY(file_fill_cache(f, from, item));
    if (item->device) WN_TRY(s->model->backend->memory->copy_in(f->ctx, item->at, e->data, e->bytes));
    if (item->cache || item->device || strstr(item->name, ".at")) continue;
    for (int64_t r = 0; r < item->rows; r++)
      memcpy(item->at + (size_t)r * item->stride, (const char *)e->data + (size_t)r * stored, row);
  }
  s->position = held->position;
  s->broken = false;
  return WN_OK;
}

static wn_status file_load(struct file *f, const wn_safetensors *from) {
  const char *texts[] = {wn_safetensors_metadata(from, "winnow.session"),
                         wn_safetensors_metadata(from, "winnow.state")};
  json_t *read[2] = {NULL, NULL};
  bool sums;
  wn_status status = WN_OK;
  if (!texts[0] || !texts[1])
    return wn_fail(f->ctx, WN_ERR_FORMAT, "%s: no state of a session: its metadata lack \"winnow.session\"", f->path);
  WN_TRY(wn_safetensors_verify(f->ctx, from, &sums));
  if (!sums) return wn_fail(f->ctx, WN_ERR_FORMAT, "%s: the state of a session without checksums", f->path);
  for (int i = 0; i < 2 && status == WN_OK; i++)
    status = wn_json_load_text(f->ctx, WN_JSON_METADATA, f->path, texts[i], strlen(texts[i]), &read[i]);
  if (status == WN_OK) status = file_compare(f, read[0]);
  if (status == WN_OK && !file_read_held(f, read[1]))
    status = wn_fail(f->ctx, WN_ERR_FORMAT, "%s: \"winnow.state\" is no state of this session, of at most %lld tokens",
                     f->path, (long long)f->s->capacity);
  json_decref(read[0]), json_decref(read[1]);
  if (status == WN_OK) status = file_list(f);
  if (status == WN_OK) status = file_check(f, from);
  return status == WN_OK ? file_take(f, from) : status;
}

wn_status wn_session_load(wn_context *ctx, wn_session *session, const char *path) {
  WN_CHECK_WORK(WN_HANDLE(session, SESSION), WN_POINTER(path));
  struct file f;
  wn_safetensors *from;
  WN_TRY(wn_safetensors_open(ctx, path, &from));
  wn_status status = file_open(ctx, path, session, &f);
  if (status == WN_OK) status = file_load(&f, from);
  file_clear(&f);
  wn_safetensors_close(from);
  return status;
}

/* --- cutting --- */

wn_status wn_session_cut(wn_context *ctx, wn_session *s, int64_t position) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION));
  if (position < 0 || position > s->position || s->broken)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: it cannot be cut to %lld tokens: %s", (long long)position,
                   s->broken ? "its last feed failed" : "it has not seen more");
  if (position == s->position) return WN_OK;
  for (int64_t i = 0; i < s->first[s->model->config.layers]; i++)
    if (s->once || s->caches[i].f || s->caches[i].notes || s->caches[i].count != s->position)
      return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                     "session: layer %lld does not know what it held after %lld tokens: expected no evictions, no "
                     "selections, no policy that keeps sums; a copy made there (wn_session_copy) can be restored",
                     (long long)s->parts[i].layer, (long long)position);
  WN_TRY(wn_session_take_back(s, s->position - position));
  s->stretched = s->stretched && position > 0;
  s->cut = true;
  return WN_OK;
}
