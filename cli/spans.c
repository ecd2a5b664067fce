/* Prompts and answers of span corruption (Raffel et al. 2020, section 3.1.4). Sentinel n is the vocabulary's token
 * number n from the end; in a text its mark is <extra_id_n>, as in T5's tokenizer.
 *
 *   prompt   Thank you <extra_id_0> me to your party <extra_id_1> week.      encoder: its tokens, sentinels, the end
 *   answer   <extra_id_0> for inviting<extra_id_1> last                      decoder, after the start token
 *
 * Spaces before a mark belong to the span, since tokens include the space before them. */
#include "spans.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "recipe.h"
#include "sampling.h"
#include "ui.h"

#define MARK "<extra_id_"

/* The number of a sentinel; -1 for any other token. */
static int32_t spans_sentinel_of(const struct cli_spans *s, int32_t id) {
  return wn_span_sentinel_number(s->vocab_size, s->sentinels, id);
}

int cli_spans_open(wn_context *ctx, const char *config, const char *dir, const wn_model *model, const wn_tokenizer *tok,
                   struct cli_spans *out) {
  char kept[CLI_PATH_BYTES];
  const char *path = cli_recipe_of(config, dir, kept);
  wn_recipe recipe;
  if (!path)
    return cli_error(
        "%s has no recipe.json, which holds an encoder-decoder's sentinels, start and end tokens; give the "
        "recipe it was trained with by --config",
        dir);
  const int code = cli_recipe_load(ctx, path, &(struct cli_list){0}, &recipe);
  if (code) return code;
  if (recipe.data.kind != WN_DATA_SPAN_CORRUPTION)
    return cli_error("%s: \"data.kind\" is not span_corruption, which an encoder-decoder is trained on", path);
  *out = (struct cli_spans){.vocab_size = (int32_t)wn_model_config_get(model)->vocab_size,
                            .entries = wn_tokenizer_vocab_size(tok),
                            .sentinels = recipe.data.sentinels,
                            .start = recipe.data.start_token,
                            .end = recipe.data.end_token};
  if (out->sentinels > out->vocab_size - out->entries)
    return cli_error("%s: %d sentinels (\"data.sentinels\") do not fit after the tokenizer's %d tokens in the model's "
                     "vocabulary of %d",
                     path, out->sentinels, out->entries, out->vocab_size);
  if (out->start >= out->vocab_size || out->end >= out->vocab_size)
    return cli_error("%s: start_token %d or end_token %d is outside the model's vocabulary of %d", path, out->start,
                     out->end, out->vocab_size);
  return 0;
}

int32_t cli_spans_end(const struct cli_spans *s, int32_t missing) {
  return s->end >= 0 ? s->end : wn_span_sentinel(s->vocab_size, missing);
}

/* --- the prompt --- */

/* Encodes text after a mark. SentencePiece would put a space before it as at the beginning of a text, so it is encoded
 * after a newline, whose tokens are dropped. */
static int spans_add_after(wn_context *ctx, const wn_tokenizer *tok, const char *text, size_t bytes,
                           struct cli_ids *ids) {
  char *line = malloc(bytes + 1);
  int32_t *newline = NULL, *all = NULL;
  size_t dropped = 0, count = 0;
  if (!line) return cli_error("out of memory");
  line[0] = '\n';
  memcpy(line + 1, text, bytes);
  wn_status status = wn_tokenizer_encode(ctx, tok, line, 1, false, false, &newline, &dropped);
  if (status == WN_OK) status = wn_tokenizer_encode(ctx, tok, line, bytes + 1, false, false, &all, &count);
  if (status == WN_OK && (count < dropped || (dropped && memcmp(all, newline, dropped * sizeof *all)))) {
    dropped = 0; /* this tokenizer treats a newline like other white space */
    wn_tokens_free(all);
    status = wn_tokenizer_encode(ctx, tok, text, bytes, false, false, &all, &count);
  }
  const int code = status == WN_OK ? cli_ids_add(ids, all + dropped, count - dropped)
                                   : cli_error("the prompt: %s", wn_context_error(ctx));
  wn_tokens_free(newline);
  wn_tokens_free(all);
  free(line);
  return code;
}

static int spans_add_text(wn_context *ctx, const wn_tokenizer *tok, const char *text, size_t bytes, bool first,
                          struct cli_ids *ids) {
  int32_t *more = NULL;
  size_t count = 0;
  if (!first && bytes == 0) return 0;
  if (!first && !strcmp(wn_tokenizer_kind(tok), "sentencepiece")) return spans_add_after(ctx, tok, text, bytes, ids);
  const wn_status status =
      wn_tokenizer_encode(ctx, tok, text, bytes, first && wn_tokenizer_bos(tok) >= 0, false, &more, &count);
  const int code = status == WN_OK ? cli_ids_add(ids, more, count) : cli_error("the prompt: %s", wn_context_error(ctx));
  wn_tokens_free(more);
  return code;
}

/* The next mark in text [bytes]: its number and length; NULL: there is none. */
static const char *spans_next_mark(const char *text, size_t bytes, long *n, size_t *length) {
  for (const char *at = text; (at = memmem(at, bytes - (size_t)(at - text), MARK, strlen(MARK))); at++) {
    size_t i = strlen(MARK), left = bytes - (size_t)(at - text);
    for (*n = 0; i < left && at[i] >= '0' && at[i] <= '9' && *n < 1 << 24; i++) *n = 10 * *n + (at[i] - '0');
    *length = i + 1;
    if (i > strlen(MARK) && i < left && at[i] == '>') return at;
  }
  return NULL;
}

int cli_spans_encode(wn_context *ctx, const struct cli_spans *s, const wn_tokenizer *tok, const char *text,
                     size_t bytes, int32_t **out, size_t *count, int32_t *missing) {
  struct cli_ids ids = {0};
  const bool spaces = strcmp(wn_tokenizer_kind(tok), "bytes") != 0; /* spaces are parts of tokens */
  const char *mark;
  size_t length = 0, now;
  long n = 0;
  int code = 0;
  *missing = 0;
  do {
    mark = spans_next_mark(text, bytes, &n, &length);
    now = mark ? (size_t)(mark - text) : bytes;
    size_t kept = now;
    while (spaces && mark && kept > 0 && text[kept - 1] == ' ') kept--;
    code = spans_add_text(ctx, tok, text, kept, ids.count == 0 && *missing == 0, &ids);
    if (code || !mark) break;
    if (n != *missing)
      code = cli_error("the prompt: " MARK "%ld> where " MARK "%d> is expected; missing spans are numbered in order", n,
                       *missing);
    else if (n + (s->end < 0) >= s->sentinels)
      code = cli_error("the prompt: " MARK "%ld> is one too many; the model knows %d sentinels%s", n, s->sentinels,
                       s->end < 0 ? ", of which the last in use is the end" : "");
    if (!code) code = cli_ids_add(&ids, &(int32_t){wn_span_sentinel(s->vocab_size, (*missing)++)}, 1);
    text += now + length, bytes -= now + length;
  } while (!code);
  if (!code && *missing == 0 && s->end < 0)
    code = cli_error("the prompt has no " MARK "0>: that marker shows where the model fills a gap");
  if (!code) code = cli_ids_add(&ids, &(int32_t){cli_spans_end(s, *missing)}, 1);
  if (code) {
    free(ids.data);
    return code;
  }
  *out = ids.data;
  *count = ids.count;
  return 0;
}

/* --- the answer --- */

void cli_spans_mask(const struct cli_spans *s, int32_t missing, float *logits) {
  const int32_t end = cli_spans_end(s, missing);
  for (int32_t v = s->entries; v < s->vocab_size; v++) {
    const int32_t n = spans_sentinel_of(s, v);
    if (v != end && (n < 0 || n >= missing)) logits[v] = -INFINITY;
  }
}

int64_t cli_spans_before(const struct cli_spans *s, const int32_t *prompt, size_t count) {
  size_t n = 0;
  while (n < count && prompt[n] < s->entries) n++;
  return (int64_t)n;
}

const char *cli_spans_mark(const struct cli_spans *s, int32_t id, size_t *bytes) {
  static char mark[32];
  const int32_t n = spans_sentinel_of(s, id);
  if (n < 0) return NULL;
  *bytes = (size_t)snprintf(mark, sizeof mark, MARK "%" PRId32 ">", n);
  return mark;
}

/* Adds the text of a token of the answer; sentinels become marks. */
static wn_status spans_add_answer(wn_context *ctx, const struct cli_spans *s, wn_text_stream *stream, int32_t id,
                                  FILE *out) {
  size_t bytes = 0;
  const char *text = cli_spans_mark(s, id, &bytes);
  if (!text && id < s->entries) { /* ids beyond the tokenizer's entries are ends without text */
    const wn_status status = wn_text_stream_push(ctx, stream, id, &text, &bytes);
    if (status != WN_OK) return status;
  }
  return fwrite(text, 1, bytes, out) == bytes ? WN_OK : WN_ERR_MEMORY;
}

static json_t *spans_string_of(const char *text, size_t bytes) {
  json_t *string = json_stringn(text, bytes);
  return string ? string : json_null(); /* null: the bytes are not UTF-8 */
}

static wn_status spans_decoded(wn_context *ctx, const wn_tokenizer *tok, const int32_t *ids, size_t count,
                               json_t **out) {
  char *text = NULL;
  size_t bytes = 0;
  const wn_status status = wn_tokenizer_decode(ctx, tok, ids, count, &text, &bytes);
  if (status == WN_OK) *out = spans_string_of(text, bytes);
  wn_text_free(text);
  return status;
}

/* Finds the drawn text tokens after sentinel n, up to the next sentinel: drawn[*first..*end). False: sentinel n was not
 * drawn. */
static bool spans_find(const struct cli_spans *s, const struct cli_spans_answer *a, int32_t n, int64_t *first,
                       int64_t *end) {
  for (int64_t i = 0; i < a->drawn_count; i++) {
    if (spans_sentinel_of(s, a->drawn[i]) != n) continue;
    *first = i + 1;
    for (*end = i + 1; *end < a->drawn_count && a->drawn[*end] < s->entries;) ++*end;
    return true;
  }
  return false;
}

static wn_status spans_whole_text(wn_context *ctx, const struct cli_spans *s, const wn_tokenizer *tok,
                                  const struct cli_spans_answer *a, json_t **out) {
  wn_text_stream *stream = NULL;
  char *text = NULL;
  size_t bytes = 0;
  FILE *copy = open_memstream(&text, &bytes);
  if (!copy) return WN_ERR_MEMORY;
  wn_status status = wn_text_stream_create(ctx, tok, &stream);
  const int64_t before = cli_spans_before(s, a->prompt, a->prompt_count);
  for (int64_t i = 0; i < before && status == WN_OK; i++) {
    const char *piece;
    size_t n;
    status = wn_text_stream_push(ctx, stream, a->prompt[i], &piece, &n);
  }
  for (int64_t i = 0; i < a->drawn_count && status == WN_OK; i++)
    status = spans_add_answer(ctx, s, stream, a->drawn[i], copy);
  wn_text_stream_destroy(stream);
  if (fclose(copy) && status == WN_OK) status = WN_ERR_MEMORY;
  if (status == WN_OK) *out = spans_string_of(text, bytes);
  free(text);
  return status;
}

int cli_spans_report(wn_context *ctx, const struct cli_spans *s, const wn_tokenizer *tok,
                     const struct cli_spans_answer *a, const char *key, json_t *into) {
  json_t *spans = json_array(), *value = NULL;
  struct cli_ids filled = {0};
  int64_t first, end;
  int code = 0;
  wn_status status = spans_whole_text(ctx, s, tok, a, &value);
  if (status == WN_OK) json_object_set_new(into, key, value);
  for (int32_t n = 0; n < a->missing && status == WN_OK; n++) {
    value = json_null();
    if (spans_find(s, a, n, &first, &end))
      status = spans_decoded(ctx, tok, a->drawn + first, (size_t)(end - first), &value);
    if (status == WN_OK) json_array_append_new(spans, value);
  }
  for (size_t i = 0; i + 1 < a->prompt_count && status == WN_OK && !code; i++) { /* all tokens but the end */
    const int32_t n = spans_sentinel_of(s, a->prompt[i]);
    if (n < 0) code = cli_ids_add(&filled, a->prompt + i, 1);
    if (n >= 0 && spans_find(s, a, n, &first, &end))
      code = cli_ids_add(&filled, a->drawn + first, (size_t)(end - first));
  }
  json_object_set_new(into, "spans", spans);
  if (status == WN_OK && !code) status = spans_decoded(ctx, tok, filled.data, filled.count, &value);
  if (status == WN_OK && !code) json_object_set_new(into, "filled", value);
  free(filled.data);
  return code ? code : status == WN_OK ? 0 : cli_fail(ctx, status);
}
