/* The list of what went into wn_data_prepare, and what an interrupted call leaves for the next one.
 *
 * Until the end, the token files lie in DIR/.prepare. Whenever an input is finished they are synced and state.json
 * there says how far they go, but not so often that this takes more than a twentieth of the time. The same call then
 * goes on after those inputs. */
#include "base/clock.h"
#include "base/error.h"
#include "base/fields.h"
#include "data/prepare.h"
#include "winnow/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SAVE_SHARE 20 /* a save is followed by at least so many times its own duration without one */

bool wn_prepare_has_test(const wn_data_prepare_options *o) {
  return o->test_bytes > 0 || o->test_fraction > 0;
}

json_t *wn_prepare_split_json(const struct wn_prepare_split *s) {
  return json_pack("{s:I, s:I, s:I}", "documents", (json_int_t)s->documents, "tokens", (json_int_t)s->writer.count,
                   "bytes", (json_int_t)s->bytes);
}

/* A name that need not be UTF-8. */
static json_t *path_json(const char *path) {
  char line[4 * 4096];
  json_t *j = json_string(path);
  if (j) return j;
  wn_line_escape(path, line, sizeof line);
  return json_string(line);
}

static json_t *sum_json(uint64_t sum) {
  char text[24];
  snprintf(text, sizeof text, "%016" PRIx64, sum);
  return json_string(text);
}

wn_status wn_prepare_sum(struct wn_prepare *j, const char *path, uint64_t *bytes, uint64_t *sum) {
  struct wn_map map;
  WN_TRY(wn_map_open(j->ctx, path, &map));
  *bytes = map.bytes;
  *sum = wn_checksum(map.data, map.bytes);
  wn_map_close(&map);
  return WN_OK;
}

uint64_t wn_prepare_tokens(const struct wn_prepare *j) {
  return j->splits[0].writer.count + j->splits[1].writer.count + j->splits[2].writer.count;
}

wn_status wn_prepare_finished(struct wn_prepare *j, const char *path, uint64_t bytes, const uint64_t *sum,
                              uint64_t documents, uint64_t tokens) {
  json_t *one =
      json_pack("{s:o*, s:I, s:o*, s:I, s:I}", "path", path ? path_json(path) : NULL, "bytes", (json_int_t)bytes,
                "xxh3", sum ? sum_json(*sum) : NULL, "documents", (json_int_t)(j->documents - documents), "tokens",
                (json_int_t)(wn_prepare_tokens(j) - tokens));
  return json_array_append_new(j->manifest, one) == 0
             ? WN_OK
             : wn_fail(j->ctx, WN_ERR_MEMORY, "out of memory: the list of inputs");
}

wn_status wn_kept_path(struct wn_prepare *j, const char *name, char path[4096]) {
  char folder[4096];
  WN_TRY(wn_path_join(j->ctx, folder, sizeof folder, j->o->out_dir, WN_KEPT));
  return wn_path_join(j->ctx, path, 4096, folder, name);
}

/* What the tokens depend on besides the inputs. The tokenizer counts as the files that were written for it. */
static wn_status kept_command(struct wn_prepare *j) {
  static const char *const files[] = {"tokenizer.model", "tokenizer.json", "tokenizer_config.json"};
  const wn_data_prepare_options *o = j->o;
  char path[4096];
  uint64_t sums[3] = {0}, bytes;
  for (int i = 0; i < 3; i++) {
    WN_TRY(wn_path_join(j->ctx, path, sizeof path, j->folder.next, files[i]));
    if (wn_path_exists(path)) WN_TRY(wn_prepare_sum(j, path, &bytes, &sums[i]));
  }
  j->command = json_pack("{s:s, s:o, s:s, s:i, s:s, s:f, s:f, s:I}", "version", wn_version(), "tokenizer",
                         sum_json(wn_checksum(sums, sizeof sums)), "field", o->field, "document_break", (int)j->breaks,
                         "layout", o->layout ? o->layout : "llmc", "val_fraction", o->val_fraction, "test_fraction",
                         o->test_fraction, "seed", (json_int_t)o->seed);
  if (j->command && (j->manifest = json_array())) return WN_OK;
  return wn_fail(j->ctx, WN_ERR_MEMORY, "out of memory: %s", o->out_dir);
}

wn_status wn_kept_save(struct wn_prepare *j) {
  const double now = wn_seconds_now();
  if (!j->resumable || (j->kept && now - j->saved_at < SAVE_SHARE * j->save_cost)) return WN_OK;
  char path[4096];
  json_t *splits = json_array();
  for (int k = 0; k < (wn_prepare_has_test(j->o) ? 3 : 2); k++) {
    struct wn_prepare_split *s = &j->splits[k];
    json_t *one = wn_prepare_split_json(s);
    json_object_set_new(one, "xxh3", sum_json(wn_checksum_end(&s->writer.sum)));
    json_array_append_new(splits, one);
    const wn_status status = wn_writer_sync(j->ctx, &s->writer.file);
    if (status != WN_OK) {
      json_decref(splits);
      return status;
    }
  }
  json_t *state = json_pack("{s:O, s:O, s:o, s:I, s:I}", "command", j->command, "inputs", j->manifest, "splits", splits,
                            "documents", (json_int_t)j->documents, "bytes", (json_int_t)j->bytes);
  wn_status status = wn_kept_path(j, "state.json", path);
  if (status == WN_OK)
    status = state ? wn_json_save_file(j->ctx, path, state) : wn_fail(j->ctx, WN_ERR_MEMORY, "out of memory: %s", path);
  json_decref(state);
  WN_TRY(status);
  j->kept = true;
  j->saved_at = wn_seconds_now();
  j->save_cost = j->saved_at - now;
  return WN_OK;
}

static bool kept_number(const json_t *object, const char *key, uint64_t *out) {
  const json_t *value = json_object_get(object, key);
  const json_int_t n = json_integer_value(value);
  *out = (uint64_t)n;
  return json_is_integer(value) && n >= 0 && n < (json_int_t)1 << 56;
}
static bool kept_sum(const json_t *object, uint64_t *out) {
  const char *text = json_string_value(json_object_get(object, "xxh3"));
  return text && strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16 && sscanf(text, "%16" SCNx64, out) == 1;
}

/* The inputs that are finished must begin this call's list, with the bytes that they had. */
static wn_status kept_check_inputs(struct wn_prepare *j, const char *path, const json_t *inputs) {
  if (json_array_size(inputs) > j->inputs.count)
    return wn_fail(
        j->ctx, WN_ERR_ARGUMENT,
        "%s: an interrupted call had read %zu inputs, this one has %zu; repeat that call, or remove %s/" WN_KEPT, path,
        json_array_size(inputs), j->inputs.count, j->o->out_dir);
  for (size_t i = 0; i < json_array_size(inputs); i++) {
    const json_t *one = json_array_get(inputs, i);
    const char *name = j->inputs.paths[i];
    json_t *mine = path_json(name);
    const bool same = json_equal(mine, json_object_get(one, "path"));
    json_decref(mine);
    if (!same)
      return wn_fail(j->ctx, WN_ERR_ARGUMENT,
                     "%s: input %zu of an interrupted call was \"%.200s\", here it is \"%.200s\"; repeat that call, or "
                     "remove %s/" WN_KEPT,
                     path, i + 1, json_string_value(json_object_get(one, "path")), name, j->o->out_dir);
    uint64_t bytes, sum, had_bytes, had_sum;
    WN_TRY(wn_prepare_sum(j, name, &bytes, &sum));
    if (!kept_number(one, "bytes", &had_bytes) || !kept_sum(one, &had_sum))
      return wn_fail(j->ctx, WN_ERR_FORMAT, "%s: input %zu lacks \"bytes\" and \"xxh3\"", path, i + 1);
    if (bytes != had_bytes || sum != had_sum)
      return wn_fail(j->ctx, WN_ERR_ARGUMENT,
                     "%s: changed since an interrupted call read it: it has %" PRIu64 " bytes of checksum %016" PRIx64
                     ", it had %" PRIu64 " of %016" PRIx64 "; put it back, or remove %s/" WN_KEPT " to begin anew",
                     name, bytes, sum, had_bytes, had_sum, j->o->out_dir);
    j->files_done += bytes;
  }
  return WN_OK;
}

static wn_status kept_take(struct wn_prepare *j, const char *path, const json_t *state, struct wn_token_kept had[3]) {
  const json_t *command = json_object_get(state, "command"), *inputs = json_object_get(state, "inputs"),
               *splits = json_object_get(state, "splits");
  for (void *at = json_object_iter(j->command); at; at = json_object_iter_next(j->command, at)) {
    const char *key = json_object_iter_key(at);
    if (j->resumable && json_equal(json_object_iter_value(at), json_object_get(command, key))) continue;
    return wn_fail(j->ctx, WN_ERR_ARGUMENT, "%s: an interrupted call had %s%s; repeat that call, or remove %s/" WN_KEPT,
                   path, j->resumable ? "another " : "other inputs", j->resumable ? key : "", j->o->out_dir);
  }
  WN_TRY(kept_check_inputs(j, path, inputs));
  bool good = json_array_size(splits) == (wn_prepare_has_test(j->o) ? 3 : 2) &&
              kept_number(state, "documents", &j->documents) && kept_number(state, "bytes", &j->bytes);
  for (size_t k = 0; good && k < json_array_size(splits); k++) {
    const json_t *s = json_array_get(splits, k);
    good = kept_number(s, "documents", &j->splits[k].documents) && kept_number(s, "bytes", &j->splits[k].bytes) &&
           kept_number(s, "tokens", &had[k].count) && kept_sum(s, &had[k].sum);
  }
  if (!good || json_array_extend(j->manifest, json_object_get(state, "inputs")) != 0)
    return wn_fail(j->ctx, WN_ERR_FORMAT, "%s: lacks counts; remove %s/" WN_KEPT, path, j->o->out_dir);
  return WN_OK;
}

wn_status wn_kept_begin(struct wn_prepare *j, struct wn_token_kept had[3]) {
  char path[4096];
  json_t *state;
  WN_TRY(kept_command(j));
  WN_TRY(wn_folder_refuse_link(j->ctx, j->o->out_dir, WN_KEPT));
  WN_TRY(wn_kept_path(j, "state.json", path));
  if (wn_path_exists(path)) {
    j->kept = true; /* a refusal leaves it as well */
    WN_TRY(wn_json_load_file(j->ctx, WN_JSON_TABLE, path, &state));
    const wn_status status = kept_take(j, path, state, had);
    json_decref(state);
    return status;
  }
  WN_TRY(wn_folder_discard(j->ctx, &j->folder, WN_KEPT));
  *strrchr(path, '/') = 0;
  return wn_make_dirs(j->ctx, path);
}

wn_status wn_kept_end(struct wn_prepare *j) {
  char path[4096];
  WN_TRY(wn_kept_path(j, "state.json", path));
  if (j->kept && unlink(path) != 0) return wn_fail(j->ctx, WN_ERR_IO, "cannot remove %s", path);
  j->kept = false;
  for (int k = 0; k < (wn_prepare_has_test(j->o) ? 3 : 2); k++)
    WN_TRY(wn_token_writer_commit(j->ctx, &j->splits[k].writer));
  return wn_folder_discard(j->ctx, &j->folder, WN_KEPT);
}
