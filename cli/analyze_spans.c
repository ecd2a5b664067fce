/* winnow analyze spans: adaptive and dynamic spans, by head and by token. */
#include "analyze.h"

static json_t *spans_json(const struct analysis *a, const wn_span_report *r) {
  const wn_span_operations *o = &r->operations;
  json_t *layers = json_array();
  for (int64_t l = 0; l < r->layers; l++) {
    const wn_span_layer *layer = &r->layer[l];
    json_t *heads = json_array();
    for (int64_t h = 0; h < r->heads; h++) {
      const wn_span_head *head = &r->head[l * r->heads + h];
      json_t *one = json_pack("{s:f, s:f}", "span", head->span, "keys", head->keys);
      if (r->dynamic)
        json_object_set_new(one, "quantiles",
                            json_pack("[f,f,f,f,f]", head->quantile[0], head->quantile[1], head->quantile[2],
                                      head->quantile[3], head->quantile[4]));
      json_array_append_new(heads, one);
    }
    json_t *one =
        json_pack("{s:f, s:f, s:o, s:I, s:I, s:o}", "span", layer->span, "widest", layer->widest, "reach",
                  layer->reach < 0 ? json_null() : json_integer(layer->reach), "memory_tokens",
                  (json_int_t)layer->recurrence_rows, "cache_tokens", (json_int_t)layer->cache_tokens, "heads", heads);
    json_array_append_new(layers, one);
  }
  json_t *operations =
      json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "maps", o->maps, "ffn", o->ffn, "attention", o->attention,
                "attention_together", o->attention_together, "attention_full", o->attention_full, "total", o->total,
                "total_together", o->total_together, "total_full", o->total_full);
  json_t *bytes =
      json_pack("{s:I, s:f, s:f, s:I, s:f, s:f}", "state_of_a_token", (json_int_t)r->state_bytes_token, "states",
                r->state_bytes, "states_full", r->state_bytes_full, "cache_of_a_token",
                (json_int_t)r->cache_bytes_token, "cache", r->cache_bytes, "cache_full", r->cache_bytes_full);
  return json_pack("{s:o, s:b, s:f, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o, s:o}", "model", cli_text(a->model_dir),
                   "dynamic", r->dynamic, "limit", r->limit, "ramp", r->ramp, "tokens", (json_int_t)r->tokens, "memory",
                   (json_int_t)r->recurrence, "context", (json_int_t)r->context, "span", r->span, "keys", r->keys,
                   "widest", r->widest, "operations_per_token", operations, "bytes_per_sequence", bytes, "layers",
                   layers);
}

static void spans_csv(FILE *f, const void *what) {
  const wn_span_report *r = what;
  fprintf(f, "layer,head,span,keys%s\n", r->dynamic ? ",least,quarter,median,three_quarters,largest" : "");
  for (int64_t i = 0; i < r->layers * r->heads; i++) {
    const wn_span_head *head = &r->head[i];
    fprintf(f, "%" PRId64 ",%" PRId64 ",%.6g,%.6g", i / r->heads, i % r->heads, head->span, head->keys);
    for (int q = 0; r->dynamic && q < 5; q++) fprintf(f, ",%.6g", head->quantile[q]);
    fputc('\n', f);
  }
}

static double analysis_percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

static void spans_print(const struct analysis *a, const void *what) {
  const wn_span_report *r = what;
  const wn_span_operations *o = &r->operations;
  printf("%s: %s spans, limit %g, ramp %g, %" PRId64 " layers of %" PRId64 " heads", a->model_dir,
         r->dynamic ? "dynamic" : "learned", r->limit, r->ramp, r->layers, r->heads);
  if (r->dynamic) printf(", %" PRIu64 " tokens", r->tokens);
  printf("\n\nlayer   mean  widest  keeps  spans by head%s\n", r->dynamic ? " (mean: least, quartiles, largest)" : "");
  for (int64_t l = 0; l < r->layers; l++) {
    const wn_span_layer *layer = &r->layer[l];
    printf("%5" PRId64 "%7.0f%8.0f%7" PRId64 " ", l, layer->span, layer->widest, layer->cache_tokens);
    for (int64_t h = 0; h < r->heads; h++) {
      const wn_span_head *head = &r->head[l * r->heads + h];
      const double *q = head->quantile;
      if (r->dynamic)
        printf("%s%.0f: %.0f %.0f %.0f %.0f %.0f", h ? " | " : " ", head->span, q[0], q[1], q[2], q[3], q[4]);
      else
        printf("%6.0f", head->span);
    }
    putchar('\n');
  }
  printf("\naverage span      %.1f tokens, with the ramp %.1f keys per head; the widest %.1f\n", r->span, r->keys,
         r->widest);
  printf("operations/token  %s: projections %s, feed-forward %s, attention %s\n", cli_count(o->total),
         cli_count(o->maps), cli_count(o->ffn), cli_count(o->attention));
  printf("  fixed spans     %s, attention %s: %.0f%% of it with spans\n", cli_count(o->total_full),
         cli_count(o->attention_full), analysis_percent(o->attention, o->attention_full));
  printf("  heads together  %s, attention %s: all heads of a layer as far as its widest\n",
         cli_count(o->total_together), cli_count(o->attention_together));
  printf("memory, a sequence\n  cache           %s of %s: %.0f%%, %s for each token and layer\n",
         cli_bytes(r->cache_bytes), cli_bytes(r->cache_bytes_full),
         analysis_percent(r->cache_bytes, r->cache_bytes_full), cli_bytes((double)r->cache_bytes_token));
  if (r->recurrence > 0)
    printf("  earlier blocks  %s of %s: %.0f%%, %s for each token and layer\n", cli_bytes(r->state_bytes),
           cli_bytes(r->state_bytes_full), analysis_percent(r->state_bytes, r->state_bytes_full),
           cli_bytes((double)r->state_bytes_token));
}

/* ---- spans token by token ---- */

static void span_tokens_csv(FILE *f, const void *what) {
  const wn_span_tokens *r = what;
  fprintf(f, "token,id,begins_word,span");
  for (int64_t i = 0; i < r->layers * r->heads; i++)
    fprintf(f, ",layer_%" PRId64 "_head_%" PRId64, i / r->heads, i % r->heads);
  fputc('\n', f);
  for (int64_t t = 0; t < r->count; t++) {
    fprintf(f, "%" PRId64 ",%" PRId32 ",%d,%.7g", t, r->id[t], r->start[t], r->mean[t]);
    for (int64_t i = 0; i < r->layers * r->heads; i++)
      fprintf(f, ",%.7g", (double)r->span[t * r->layers * r->heads + i]);
    fputc('\n', f);
  }
}

static json_t *span_tokens_json(const struct analysis *a, const wn_span_tokens *r) {
  json_t *mean = json_array();
  for (int64_t t = 0; t < r->count; t++) json_array_append_new(mean, json_real(r->mean[t]));
  return json_pack("{s:o, s:I, s:I, s:I, s:{s:I, s:f}, s:{s:I, s:f}, s:{s:I, s:f}, s:o}", "model",
                   cli_text(a->model_dir), "tokens", (json_int_t)r->count, "layers", (json_int_t)r->layers, "heads",
                   (json_int_t)r->heads, "word_starts", "tokens", (json_int_t)r->starts, "span", r->start_mean,
                   "before_word_starts", "tokens", (json_int_t)r->before, "span", r->before_mean, "elsewhere", "tokens",
                   (json_int_t)r->others, "span", r->other_mean, "spans", mean);
}

static void span_tokens_print(const struct analysis *a, const void *what) {
  const wn_span_tokens *r = what;
  printf("%s: dynamic spans of %" PRId64 " tokens, mean over %" PRId64 " layers of %" PRId64 " heads\n\n", a->model_dir,
         r->count, r->layers, r->heads);
  printf("where                      tokens   mean span\n"
         "a word begins            %8" PRId64 "%12.2f\nbefore a word begins     %8" PRId64
         "%12.2f\nelsewhere                %8" PRId64 "%12.2f\n",
         r->starts, r->start_mean, r->before, r->before_mean, r->others, r->other_mean);
}

struct spans {
  struct analysis analysis;
  bool tokens;
};

static const struct cli_option spans_options[] = {
    CLI_OPTION(struct spans, tokens, "tokens", NULL,
               "dynamic spans token by token instead, --csv with a row for each, and means where words begin"),
    ANALYSIS_OPTIONS(struct spans, analysis)};

static const struct cli_spec spans_spec = {
    .command = "winnow analyze spans",
    .summary =
        "How far back each head looks (adaptive and dynamic spans), and the operations and memory that this saves.\n"
        "Dynamic spans are measured on a text: --text or --data.",
    CLI_TABLE(spans_options),
    CLI_OPTIONAL("[DIR]"),
    .epilog =
        "Operations for one token, multiply and add counted as one: query, key, value and output projections, the\n"
        "feed-forward, and in the attention 2 D for each visible key, as Sukhbaatar et al. 2019 count them."};

static int spans_by_token(struct analysis *a) {
  const wn_analysis_input from = analysis_input(a);
  wn_span_tokens *tokens = NULL;
  if (a->eval.batch > 0)
    return cli_usage_error(a->command, "--tokens reads one sequence at a time: it goes without --batch");
  int code = analysis_needs_text(a);
  if (code) return code;
  analysis_begin(a, "spans", "batches");
  code = analysis_end(a, analysis_ended(a, wn_analyze_span_tokens(a->ctx, a->model, &from, &tokens)));
  if (!code) code = analysis_deliver(a, span_tokens_json(a, tokens), span_tokens_csv, span_tokens_print, tokens);
  wn_span_tokens_destroy(tokens);
  return code;
}

int analyze_spans(int argc, char **argv) {
  struct spans s = {.analysis = ANALYSIS_DEFAULTS};
  struct analysis *a = &s.analysis;
  int code = analysis_open(a, &spans_spec, argc, argv, &s);
  wn_span_report *report = NULL;
  if (s.tokens) {
    /* Words are found in text: for a token file the checkpoint's tokenizer is needed. */
    if (!code && analysis_tokenizer(a) != WN_OK)
      cli_note(&a->common, "no tokenizer: beginnings of words are not known");
    if (!code) code = spans_by_token(a);
    analysis_close(a);
    return code;
  }
  if (!code) {
    const bool input = a->source || a->tok;
    const wn_analysis_input from = analysis_input(a);
    analysis_begin(a, "spans", "batches");
    const wn_status status = analysis_ended(a, wn_analyze_spans(a->ctx, a->model, input ? &from : NULL, &report));
    if (status == WN_ERR_UNSUPPORTED && wn_model_config_get(a->model)->attention.span.enabled)
      code = cli_error("%s: %s, give --text or --data", a->model_dir, wn_context_error(a->ctx));
    else
      code = analysis_end(a, status);
    if (!code && input && !report->dynamic) cli_note(&a->common, "the spans are parameters: the text was not read");
  }
  if (!code) code = analysis_deliver(a, spans_json(a, report), spans_csv, spans_print, report);
  wn_span_report_destroy(report);
  analysis_close(a);
  return code;
}
