/* What every token of a text sees, layer by layer, and means over many sequences. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "report/section.h"

enum { TEXTS_SHORT = 64 }; /* up to so many tokens a text's heads are drawn one by one */

struct shown_text {
  int32_t *ids; /* [T] */
  char **pieces;
  int64_t T;
};

static void texts_clear(struct shown_text *t) {
  for (int64_t i = 0; t->pieces && i < t->T; i++) wn_free(t->pieces[i]);
  wn_free(t->pieces);
  wn_free(t->ids);
}

static wn_status texts_room(wn_context *ctx, struct shown_text *t, int64_t T) {
  WN_TRY(WN_ALLOC(ctx, "a text's tokens", T, &t->ids));
  WN_TRY(WN_ALLOC(ctx, "a text's tokens", T, &t->pieces));
  t->T = T;
  return WN_OK;
}

/* Reads the first tokens of the data. */
static wn_status texts_read_data(struct wn_report *r, const struct wn_report_input *in, int64_t most,
                                 struct shown_text *t) {
  wn_data_config data;
  wn_token_file *file;
  WN_TRY(wn_report_data(r, in, &data));
  if (!data.val[0]) return WN_OK;
  WN_TRY(wn_token_file_open(r->ctx, data.val, &file));
  const uint64_t all = wn_token_file_count(file);
  const int64_t T = all < (uint64_t)most ? (int64_t)all : most;
  wn_status status = texts_room(r->ctx, t, T);
  if (status == WN_OK && T > 0) status = wn_token_file_read(r->ctx, file, 0, (uint64_t)T, t->ids);
  wn_token_file_close(file);
  return status;
}

static wn_status texts_encode(struct wn_report *r, const struct wn_report_input *in, int64_t most,
                              struct shown_text *t) {
  size_t n = 0;
  int32_t *all = NULL;
  WN_TRY(wn_tokenizer_encode(r->ctx, in->tok, r->options->text, r->options->text_bytes, wn_tokenizer_bos(in->tok) >= 0,
                             false, &all, &n));
  const int64_t T = n < (size_t)most ? (int64_t)n : most;
  wn_status status = T > 0 ? texts_room(r->ctx, t, T) : wn_fail(r->ctx, WN_ERR_ARGUMENT, "the text has no tokens");
  if (status == WN_OK) memcpy(t->ids, all, (size_t)T * sizeof *all);
  wn_tokens_free(all);
  return status;
}

/* Reads the first sequence of a task, with the names of its tokens; values and bits get a space after them. */
static wn_status texts_read_task(struct wn_report *r, const struct wn_report_input *in, int64_t most,
                                 struct shown_text *t) {
  wn_data_source *source;
  int32_t *targets;
  WN_TRY(wn_report_source(r, in, most, &source));
  if (!source) return WN_OK;
  wn_status status = texts_room(r->ctx, t, most);
  if (status == WN_OK) status = WN_ALLOC(r->ctx, "a text's targets", most, &targets);
  if (status == WN_OK) {
    status = wn_data_source_batch(r->ctx, source, 0, 0, 1, t->ids, targets, NULL);
    while (t->T > 1 && targets[t->T - 1] < 0) t->T--;
    if (t->T < most && in->task.kind != WN_DATA_VARIABLE_ASSIGNMENT) t->T++; /* include the last answer */
    wn_free(targets);
  }
  wn_data_source_destroy(source);
  for (int64_t i = 0; i < t->T && status == WN_OK; i++) {
    enum { NAME_BYTES = 24 };
    status = WN_ALLOC(r->ctx, "a token's name", NAME_BYTES, &t->pieces[i]);
    if (status != WN_OK) break;
    if (!wn_data_token_name(&in->task, t->ids[i], t->pieces[i], NAME_BYTES - 1)) t->pieces[i][0] = 0;
    const size_t n = strlen(t->pieces[i]);
    if (n > 0 && t->pieces[i][n - 1] != '=') memcpy(t->pieces[i] + n, " ", 2);
  }
  return status;
}

/* Cuts the text into what each token adds to it when decoded in order, so that spaces are where they are in the
 * text. */
static wn_status texts_cut(struct wn_report *r, const struct wn_report_input *in, struct shown_text *t) {
  wn_text_stream *stream;
  WN_TRY(wn_text_stream_create(r->ctx, in->tok, &stream));
  wn_status status = WN_OK;
  for (int64_t i = 0; status == WN_OK && i < t->T; i++) {
    const char *s = "";
    size_t n = 0;
    status = wn_text_stream_push(r->ctx, stream, t->ids[i], &s, &n);
    if (status == WN_OK) status = WN_ALLOC(r->ctx, "a token's text", n + 1, &t->pieces[i]);
    if (status == WN_OK && n > 0) memcpy(t->pieces[i], s, n);
  }
  wn_text_stream_destroy(stream);
  return status;
}

static wn_status texts_add(struct wn_report *r, const struct wn_report_input *in) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  const int64_t most = r->options->tokens < c->context ? r->options->tokens : c->context;
  struct shown_text t = {0};
  wn_status status = in->is_task        ? texts_read_task(r, in, most, &t)
                     : r->options->text ? texts_encode(r, in, most, &t)
                                        : texts_read_data(r, in, most, &t);
  if (status == WN_OK && !in->is_task) status = texts_cut(r, in, &t);
  if (status == WN_OK && t.T > 0) {
    const wn_budgets *budgets = in->budgets.layers > 0 ? &in->budgets : NULL;
    const bool heads = t.T <= TEXTS_SHORT || r->options->heads;
    const wn_page_text text = {.name = in->name,
                               .pieces = (const char *const *)t.pieces,
                               .T = t.T,
                               .layers = c->layers,
                               .heads = c->heads,
                               .selective = c->attention.selective.enabled,
                               .budgets = budgets};
    double loss = 0;
    status = wn_page_begin_text(r->page, &text);
    const wn_selection_options selection = {
        .size = sizeof selection, .budgets = budgets, .heads = heads, .layer = wn_page_add_layer, .user = r->page};
    if (status == WN_OK) status = wn_analyze_selection(r->ctx, in->loaded, t.ids, t.T, &selection, &loss);
    if (status == WN_OK) status = wn_page_set_loss(r->page, loss);
    r->texts++;
  } else if (status == WN_OK && !in->task_told) {
    wn_report_note(r, in, "no text to show: neither a text nor tokens of the run were given");
  }
  texts_clear(&t);
  return status;
}

static wn_status texts_add_mean(struct wn_report *r, const struct wn_report_input *in, int *means) {
  const wn_model_config *c = wn_model_config_get(in->loaded);
  const wn_report_options *o = r->options;
  const int64_t T = o->tokens < c->context ? o->tokens : c->context;
  wn_data_source *source;
  wn_selection_mean *mean = NULL;
  WN_TRY(wn_report_source(r, in, T, &source));
  if (!source) return WN_OK;
  const wn_selection_mean_options options = {.size = sizeof options, .T = T, .sequences = o->sequences};
  wn_status status = wn_analyze_selection_mean(r->ctx, in->loaded, source, &options, &mean);
  if (status == WN_OK) status = wn_page_add_mean(r->page, in->name, mean);
  wn_selection_mean_destroy(mean);
  wn_data_source_destroy(source);
  ++*means;
  return status;
}

static wn_status texts_draw(struct wn_report *r) {
  int means = 0;
  for (int i = 0; i < r->input_count; i++) {
    if (!r->inputs[i].shown) continue;
    WN_TRY(texts_add(r, &r->inputs[i]));
    if (r->options->sequences > 0) WN_TRY(texts_add_mean(r, &r->inputs[i], &means));
  }
  if (r->texts == 0 && means == 0) return WN_OK;
  WN_TRY(wn_report_head(r));
  return wn_page_add_texts(r->page, r->command);
}

const struct wn_section wn_section_texts = {
    .name = "texts", .title = "Attention, selections and evictions", .needs = WN_NEEDS_MODELS, .draw = texts_draw};
