/* Reads questions. A request is tokenised as in lm-evaluation-harness (lm_eval/api/model.py, TemplateLM._encode_pair):
 * the whole text at once, cut after as many tokens as the context alone has. White space at the context's end counts as
 * part of the continuation. */
#include "eval/questions.h"

#include <string.h>

#include "base/fields.h"
#include "text/utf8.h"

void wn_questions_clear(struct wn_questions *q) {
  wn_free(q->all);
  wn_free(q->requests);
  wn_ids_clear(&q->ids);
  *q = (struct wn_questions){0};
}

/* --- tokens --- */

struct reader {
  const wn_tokenizer *tok;
  int64_t context;
  struct wn_questions *out;
};

/* Tokenises `whole`, whose first `context_bytes` bytes are the context. */
static wn_status question_encode(wn_context *ctx, const struct reader *r, const char *whole, size_t context_bytes,
                                 const char *where, struct wn_asked_request *out) {
  const bool bos = wn_tokenizer_bos(r->tok) >= 0;
  int32_t *ids = NULL, *context = NULL;
  size_t n = 0, context_n = 1;
  struct wn_ids *all = &r->out->ids;
  wn_status status = wn_tokenizer_encode(ctx, r->tok, whole, strlen(whole), bos && context_bytes > 0, false, &ids, &n);
  out->at = all->count;
  if (status == WN_OK && context_bytes == 0) {
    const int32_t prefix = bos ? wn_tokenizer_bos(r->tok) : wn_tokenizer_eos(r->tok);
    if (prefix < 0)
      status = wn_fail(ctx, WN_ERR_FORMAT, "the context is empty, and the tokenizer has no token that begins a text");
    if (status == WN_OK) status = wn_ids_add(ctx, all, &prefix, 1);
  } else if (status == WN_OK) {
    status = wn_tokenizer_encode(ctx, r->tok, whole, context_bytes, bos, false, &context, &context_n);
  }
  if (status == WN_OK) status = wn_ids_add(ctx, all, ids, n);
  wn_tokens_free(ids);
  wn_tokens_free(context);
  if (status != WN_OK) return wn_fail_prefix(ctx, status, "%s", where);
  out->n = (int64_t)(all->count - out->at);
  out->context = (int64_t)context_n;
  if (out->n <= out->context)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: the continuation has no tokens of its own", where);
  const int64_t drop = out->n - r->context - 1;
  if (drop <= 0) return WN_OK;
  if (drop >= out->context)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: the continuation has %lld tokens, the context has room for %lld", where,
                   (long long)(out->n - out->context), (long long)r->context);
  out->at += (size_t)drop;
  out->n -= drop;
  out->context -= drop;
  return WN_OK;
}

static wn_status question_add_request(wn_context *ctx, const struct reader *r, const struct wn_task_request *from,
                                      const char *where) {
  struct wn_questions *q = r->out;
  struct wn_text whole = {0};
  const char *begin, *context = from->context.data ? from->context.data : "";
  size_t kept;
  wn_task_strip(context, &begin, &kept);
  if (kept > 0) kept += (size_t)(begin - context); /* only white space at the end moves to the continuation */
  WN_TRY(WN_GROW(ctx, "questions", &q->requests, q->request_count, 1, &q->request_capacity));
  struct wn_asked_request *out = &q->requests[q->request_count];
  *out = (struct wn_asked_request){.bytes = (int64_t)(from->continuation.bytes - from->bare),
                                   .chars = (int64_t)wn_utf8_characters(from->continuation.data + from->bare,
                                                                        from->continuation.bytes - from->bare)};
  wn_status status = wn_task_format(ctx, &whole, "%s%s", context, from->continuation.data);
  if (status == WN_OK) status = question_encode(ctx, r, whole.data, kept, where, out);
  wn_free(whole.data);
  if (status == WN_OK) q->request_count++;
  return status;
}

void wn_question_compare(const struct wn_questions *q, struct wn_asked *asked) {
  const struct wn_asked_request *r = &q->requests[asked->first];
  const int32_t *first = q->ids.data + r->at;
  asked->common = r->n - 1;
  for (int i = 1; i < asked->count; i++) {
    const int32_t *ids = q->ids.data + r[i].at;
    int64_t n = r[i].n - 1 < asked->common ? r[i].n - 1 : asked->common, same = 0;
    while (same < n && ids[same] == first[same]) same++;
    asked->common = same;
  }
  asked->rows = 0;
  for (int i = 0; i < asked->count; i++)
    if (r[i].n - 1 > asked->rows) asked->rows = r[i].n - 1;
  asked->longest = asked->rows - asked->common;
}

static wn_status question_add(wn_context *ctx, const struct reader *r, const struct wn_question *from) {
  struct wn_questions *q = r->out;
  WN_TRY(WN_GROW(ctx, "questions", &q->all, q->count, 1, &q->capacity));
  struct wn_asked *asked = &q->all[q->count];
  *asked = (struct wn_asked){.first = q->request_count, .count = from->count, .gold = from->gold};
  for (int i = 0; i < from->count; i++) WN_TRY(question_add_request(ctx, r, &from->requests[i], from->where));
  wn_question_compare(q, asked);
  q->count++;
  return WN_OK;
}

/* --- the file --- */

static wn_status questions_find(wn_context *ctx, const char *task, const char *path, char file[4096]) {
  if (!wn_path_is_dir(path)) {
    if (snprintf(file, 4096, "%s", path) < 4096) return WN_OK;
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%.64s...: the path is too long", path);
  }
  static const char *const ends[] = {".jsonl", ".jsonl.gz"};
  for (size_t i = 0; i < 2; i++) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", task, ends[i]);
    WN_TRY(wn_path_join(ctx, file, 4096, path, name));
    if (wn_path_exists(file)) return WN_OK;
  }
  return wn_fail(ctx, WN_ERR_IO, "%s: no %s.jsonl and no %s.jsonl.gz in this folder", path, task, task);
}

static bool line_is_blank(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n') return false;
  return true;
}

wn_status wn_question_line_next(wn_context *ctx, struct wn_lines *lines, char where[WN_QUESTION_WHERE], json_t **out) {
  const char *text;
  size_t bytes;
  *out = NULL;
  do {
    WN_TRY(wn_lines_next(ctx, lines, &text, &bytes));
    if (bytes == 0) return WN_OK;
  } while (line_is_blank(text, bytes));
  snprintf(where, WN_QUESTION_WHERE, "%s:%llu", lines->path, (unsigned long long)lines->line);
  WN_TRY(wn_json_load_text(ctx, WN_JSON_SAMPLE, where, text, bytes, out));
  if (json_is_object(*out)) return WN_OK;
  json_decref(*out);
  *out = NULL;
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: expected a JSON object", where);
}

wn_status wn_questions_read(wn_context *ctx, const struct wn_task_row *task, const char *path, const wn_tokenizer *tok,
                            int64_t context, int64_t limit, struct wn_questions *out) {
  char file[4096], where[WN_QUESTION_WHERE];
  const struct reader reader = {tok, context, out};
  struct wn_question *q = NULL;
  struct wn_lines lines = {0};
  *out = (struct wn_questions){0};
  WN_TRY(questions_find(ctx, task->info.name, path, file));
  WN_TRY(WN_ALLOC(ctx, "a question", 1, &q));
  q->where = where;
  wn_status status = wn_lines_open(ctx, file, &lines);
  while (status == WN_OK && (limit == 0 || out->count < limit)) {
    json_t *line;
    status = wn_question_line_next(ctx, &lines, where, &line);
    if (status != WN_OK || !line) break;
    wn_question_clear(q);
    status = wn_task_read(ctx, task, line, q);
    json_decref(line);
    if (status == WN_OK) status = question_add(ctx, &reader, q);
  }
  wn_question_clear(q);
  wn_free(q);
  wn_lines_close(&lines);
  if (status == WN_OK && out->count == 0) status = wn_fail(ctx, WN_ERR_FORMAT, "%s: no question in it", file);
  if (status != WN_OK) wn_questions_clear(out);
  return status;
}

/* --- values --- */

static int question_choose(const struct wn_asked_request *r, int count, wn_task_metric metric) {
  int best = 0;
  double most = 0;
  for (int i = 0; i < count; i++) {
    const double by = metric == WN_METRIC_ACC_NORM    ? (double)r[i].chars
                      : metric == WN_METRIC_ACC_BYTES ? (double)r[i].bytes
                                                      : 1;
    const double value = r[i].log_probability / by;
    if (i == 0 || value > most) best = i, most = value; /* ties go to the first */
  }
  return best;
}

bool wn_question_value(const struct wn_questions *q, int64_t i, wn_task_metric metric, double *out) {
  const struct wn_asked *a = &q->all[i];
  const struct wn_asked_request *r = &q->requests[a->first];
  if (a->gold >= 0) {
    *out = question_choose(r, a->count, metric) == a->gold;
    return metric != WN_METRIC_PERPLEXITY;
  }
  *out = metric == WN_METRIC_ACC ? r->greedy : r->log_probability;
  return metric == WN_METRIC_ACC || metric == WN_METRIC_PERPLEXITY;
}
