/* winnow generate: continues a prompt token by token with a key-value cache, and prints the text as it grows. An
 * encoder-decoder reads the prompt with its encoder and writes what is missing in it (spans.h). */
#include "cmd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <winnow/generate.h>
#include <winnow/model.h>
#include "counts.h"
#include "format.h"
#include "load.h"
#include "signals.h"
#include "spans.h"
#include "files.h"

struct request {
  struct cli_common common;
  struct cli_loading load;
  struct cli_sampling sampling;
  struct cli_dialogue dialogue;
  struct cli_format format;
  struct cli_counts counts;
  const char *prompt, *prompt_file, *config, *jsonl, *out, *load_state, *save_state;
  struct cli_list stop;
  int64_t tokens;
  bool ignore_end, chat;
};

struct run {
  struct cli_loaded in;
  wn_session *session;
  wn_constraint *constraint;
  bool encodes;           /* the model has an encoder */
  struct cli_spans spans; /* the sentinels of its prompts */
  int32_t missing;        /* missing spans of the prompt */
  char *text;             /* the prompt's text, if read from a file */
  int32_t *ids;           /* [prompt_count] the prompt's tokens */
  size_t prompt_count;
  uint8_t *control; /* [prompt_count] control tokens, found by the prompt's text; NULL: only ids count */
  FILE *counts;     /* NULL: not wanted */
  int64_t document; /* number of the prompt's line; 1 with one prompt */
  const struct request *request;
  int32_t *drawn; /* [max tokens] */
  bool streams;   /* the text goes to standard output as it grows */
  FILE *copy;     /* with stop strings: receives the text as it is passed on, in written [written_bytes] */
  char *written;
  size_t written_bytes;
  wn_generate_result result;
  bool interrupted;
};

static void generate_free_prompt(struct run *g) {
  if (g->encodes)
    free(g->ids);
  else
    wn_tokens_free(g->ids);
  g->ids = NULL;
}

/* Frees what belongs to one prompt. */
static void generate_clear_prompt(struct run *g) {
  wn_session_destroy(g->session);
  generate_free_prompt(g);
  if (g->copy) fclose(g->copy);
  free(g->written);
  free(g->drawn);
  free(g->control);
  g->session = NULL, g->copy = NULL, g->written = NULL, g->drawn = NULL, g->control = NULL;
  g->prompt_count = 0;
}

static void generate_clear(struct run *g) {
  generate_clear_prompt(g);
  if (g->counts) fclose(g->counts);
  wn_constraint_destroy(g->constraint);
  cli_loaded_clear(&g->in);
  wn_text_free(g->text);
}

static int generate_encode_prompt(wn_context *ctx, struct run *g, const char *prompt, size_t bytes) {
  const wn_status status =
      g->request->load_state
          ? wn_tokenizer_encode(ctx, g->in.tok, prompt, bytes, false, false, &g->ids, &g->prompt_count)
          : wn_prompt_encode(ctx, g->in.tok, prompt, bytes, &g->ids, &g->prompt_count);
  return status == WN_OK ? 0 : cli_error("the prompt: %s", wn_context_error(ctx));
}

/* Encodes the prompt as a user's message in the model's template. */
static int generate_encode_message(wn_context *ctx, const struct request *r, struct run *g, const char *prompt,
                                   size_t bytes) {
  if (strlen(prompt) != bytes)
    return cli_error("the prompt has a NUL at byte %zu: a chat's message is a text without", strlen(prompt));
  struct cli_dialogue_choice choice;
  int code = cli_dialogue_choose(ctx, &r->dialogue, r->load.model, g->in.tok, &choice);
  if (code) return code;
  const wn_chat_message messages[2] = {{WN_CHAT_SYSTEM, choice.system ? choice.system : ""}, {WN_CHAT_USER, prompt}};
  int first = choice.system ? 0 : 1;
  wn_status status =
      wn_chat_encode(ctx, g->in.tok, choice.chat, messages + first, 2 - first, true, &g->ids, &g->prompt_count);
  cli_dialogue_clear(&choice);
  return status == WN_OK ? 0 : cli_error("the prompt: %s", wn_context_error(ctx));
}

/* Checks options that go only with an encoder-decoder or only without, and loads the spans. */
static int generate_load_spans(wn_context *ctx, const struct request *r, struct run *g) {
  if (!g->encodes && r->config) return cli_error("--config is for an encoder-decoder, which %s is not", r->load.model);
  if (!g->encodes) return 0;
  if (cli_format_is_given(&r->format))
    return cli_error("--json-object and --json-schema: %s is an encoder-decoder, which fills in spans", r->load.model);
  if (r->chat)
    return cli_error("--chat: %s is an encoder-decoder, which fills in spans and answers no messages", r->load.model);
  return cli_spans_open(ctx, r->config, r->load.model, g->in.model, g->in.tok, &g->spans);
}

static int generate_load(wn_context *ctx, struct request *r, struct run *g) {
  const int code = cli_load(ctx, "winnow generate", &r->common, &r->load, true, &g->in);
  if (code) return code;
  g->encodes = wn_model_config_get(g->in.model)->encoder.layers > 0;
  if ((r->counts.file || cli_counts_marks(&r->counts)) &&
      (g->encodes || !wn_model_config_get(g->in.model)->attention.threshold.enabled))
    return cli_error("%s: tokens are counted, and control tokens kept, by a threshold of a decoder, as --attention "
                     "threshold.tau=0.75",
                     r->counts.file ? "--counts" : "--control-text, --control-span and --control-outside");
  if (r->counts.file && !(g->counts = cli_open_output(r->counts.file))) return 1;
  if (g->counts) cli_counts_head(g->counts, &r->counts, wn_model_config_get(g->in.model));
  const int spans = generate_load_spans(ctx, r, g);
  return spans ? spans : cli_format_open(ctx, &r->format, g->in.tok, &g->constraint);
}

static int generate_read_prompt(wn_context *ctx, const struct request *r, struct run *g, const char **prompt,
                                size_t *bytes) {
  const char *path = r->prompt_file;
  *prompt = r->prompt ? r->prompt : "";
  *bytes = strlen(*prompt);
  if (r->prompt) return 0;
  if (!path && !isatty(STDIN_FILENO)) path = "-";
  if (path && cli_read_text(ctx, path, &g->text, bytes)) return 1;
  if (path) *prompt = g->text;
  return 0;
}

/* Opens a session, with what counting needs. */
static int generate_open_session(wn_context *ctx, const struct request *r, struct run *g, int64_t capacity) {
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = 1,
                                      .capacity = capacity,
                                      .budgets = &g->in.budgets,
                                      .cache = g->in.budgets.cache,
                                      .counts = r->counts.file != NULL,
                                      .control_marks = g->control != NULL};
  wn_status status = wn_session_create(ctx, g->in.model, &options, &g->session);
  if (status == WN_OK && r->load_state) status = wn_session_load(ctx, g->session, r->load_state);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

/* Prepares everything for one prompt; `place` says where its document is. */
static int generate_prepare(wn_context *ctx, struct request *r, struct run *g, struct cli_counts_prompt *place) {
  const char *prompt = place->text;
  const size_t bytes = place->bytes;
  const wn_model_config *config = wn_model_config_get(g->in.model);
  int code = g->encodes
                 ? cli_spans_encode(ctx, &g->spans, g->in.tok, prompt, bytes, &g->ids, &g->prompt_count, &g->missing)
             : r->chat ? generate_encode_message(ctx, r, g, prompt, bytes)
                       : generate_encode_prompt(ctx, g, prompt, bytes);
  if (code) return code;
  if (g->prompt_count == 0) return cli_error("the prompt has no tokens");
  place->ids = g->ids, place->count = g->prompt_count;
  if (cli_counts_marks(&r->counts)) code = cli_counts_control(ctx, &r->counts, g->in.tok, place, &g->control);
  if (code) return code;
  if (g->encodes && (int64_t)g->prompt_count > config->encoder.context)
    return cli_error("the prompt has %zu tokens with its end; the encoder of %s reads at most %" PRId64,
                     g->prompt_count, r->load.model, config->encoder.context);
  const int64_t fed = g->encodes ? 1 : (int64_t)g->prompt_count; /* tokens fed before the first one is drawn */
  int64_t capacity = r->load_state && !g->encodes ? config->context : fed + r->tokens;
  if (config->position == WN_POS_LEARNED) {
    if (fed > config->context)
      return cli_error("the prompt has %zu tokens; %s has learned positions for %" PRId64, g->prompt_count,
                       r->load.model, config->context);
    if (capacity > config->context) capacity = config->context;
  }
  g->drawn = calloc((size_t)r->tokens + 1, sizeof *g->drawn);
  if (r->stop.count > 0) g->copy = open_memstream(&g->written, &g->written_bytes);
  if (!g->drawn || (r->stop.count > 0 && !g->copy)) return cli_error("out of memory");
  return generate_open_session(ctx, r, g, capacity);
}

/* --- drawing --- */

static bool generate_on_piece(void *user, const wn_generate_piece *piece) {
  struct run *g = user;
  if (g->counts && piece->counts)
    cli_counts_row(g->counts, &g->request->counts, wn_model_config_get(g->in.model), g->document, piece);
  if (g->copy) fwrite(piece->text, 1, piece->bytes, g->copy);
  if (!g->streams) return true;
  return fwrite(piece->text, 1, piece->bytes, stdout) == piece->bytes &&
         !fflush(stdout); /* main reports a failed write */
}

static void generate_on_logits(void *user, int64_t index, float *logits, int64_t V) {
  const struct run *g = user;
  (void)index, (void)V;
  cli_spans_mask(&g->spans, g->missing, logits);
}

static const char *generate_on_mark(void *user, int32_t id, size_t *bytes) {
  const struct run *g = user;
  return cli_spans_mark(&g->spans, id, bytes);
}

/* For an encoder-decoder: the encoder reads the prompt, and the decoder begins with the start token. Only the
 * tokenizer's entries and the prompt's marks may be drawn, and the answer continues the prompt's text. */
static void generate_choose_spans(struct run *g, wn_generate_options *o) {
  o->inputs = g->ids;
  o->input_count = (int64_t)g->prompt_count;
  o->prompt = &g->spans.start;
  o->prompt_count = 1;
  o->vocab_size = g->spans.vocab_size;
  o->text_before = g->ids;
  o->text_before_count = cli_spans_before(&g->spans, g->ids, g->prompt_count);
  o->logits = generate_on_logits;
  o->text_of = generate_on_mark;
}

static int generate_draw(wn_context *ctx, const struct request *r, struct run *g) {
  wn_generate_options o;
  const int32_t end = g->encodes ? cli_spans_end(&g->spans, g->missing) : wn_tokenizer_bos(g->in.tok);
  wn_generate_options_init(&o, sizeof o);
  o.prompt = g->ids;
  o.prompt_count = (int64_t)g->prompt_count;
  o.tok = g->in.tok;
  o.max_tokens = r->tokens;
  o.ignore_end = r->ignore_end || g->encodes;
  o.stop_tokens = &end;
  o.stop_token_count = !r->ignore_end && end >= 0;
  o.stop_strings = r->stop.items;
  o.stop_string_count = r->stop.count;
  o.drawn = g->drawn;
  o.constraint = g->constraint;
  o.control = g->control;
  o.counts = g->counts != NULL;
  o.piece = generate_on_piece;
  o.user = g;
  cli_sampling_apply(&r->sampling, g->in.draft, &o);
  if (g->encodes) generate_choose_spans(g, &o);
  const wn_status status = wn_session_generate(ctx, g->session, &o, &g->result);
  if (status != WN_OK) return cli_fail(ctx, status);
  if (g->copy && (fclose(g->copy), g->copy = NULL, !g->written)) return cli_error("out of memory");
  g->interrupted = g->result.end == WN_GENERATE_CANCELLED && !ferror(stdout);
  return 0;
}

/* --- results --- */

/* Puts the drawn text into a result under `key`, for an encoder-decoder also span by span. */
static int generate_put_answer(wn_context *ctx, const struct run *g, const char *key, json_t *none, json_t *into) {
  char *text = NULL;
  size_t bytes = 0;
  wn_status status = WN_OK;
  if (g->encodes) {
    const struct cli_spans_answer answer = {.prompt = g->ids,
                                            .prompt_count = g->prompt_count,
                                            .missing = g->missing,
                                            .drawn = g->drawn,
                                            .drawn_count = g->result.tokens};
    const int code = cli_spans_report(ctx, &g->spans, g->in.tok, &answer, key, into);
    if (code || g->result.end != WN_GENERATE_STOP) {
      json_decref(none);
      return code;
    }
  } else if (g->result.end != WN_GENERATE_STOP) {
    status = wn_tokenizer_decode(ctx, g->in.tok, g->drawn, (size_t)g->result.tokens, &text, &bytes);
  }
  /* The text before a stop string. NULL: the drawn bytes are not UTF-8. */
  json_t *string = g->result.end == WN_GENERATE_STOP ? json_stringn(g->written, g->written_bytes)
                   : status == WN_OK                 ? json_stringn(text, bytes)
                                                     : NULL;
  json_object_set_new(into, key, string ? string : json_incref(none));
  json_decref(none);
  wn_text_free(text);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

/* Why the text ended; a failed write ends it too, and main reports that. */
static const char *generate_stopped(const struct run *g) {
  const bool unwritten = g->result.end == WN_GENERATE_CANCELLED && !g->interrupted;
  return wn_generate_end_name(unwritten ? WN_GENERATE_LENGTH : g->result.end);
}

static int generate_report(wn_context *ctx, const struct request *r, const struct run *g) {
  const wn_generate_result *result = &g->result;
  const double rate = result->token_seconds > 0 ? (double)result->tokens / result->token_seconds : 0;
  const double fed = result->prompt_seconds > 0 ? (double)g->prompt_count / result->prompt_seconds : 0;
  if (r->common.json) {
    json_t *j = json_object(), *prompt = json_array(), *ids = json_array();
    const int code = generate_put_answer(ctx, g, "text", json_null(), j);
    for (size_t i = 0; i < g->prompt_count; i++) json_array_append_new(prompt, json_integer(g->ids[i]));
    for (int64_t i = 0; i < result->tokens; i++) json_array_append_new(ids, json_integer(g->drawn[i]));
    json_object_set_new(j, "ids", ids);
    json_object_set_new(j, "prompt_ids", prompt);
    json_object_set_new(j, "stopped", json_string(generate_stopped(g)));
    json_object_set_new(j, "tokens", json_integer(result->tokens));
    json_object_set_new(j, "tokens_per_second", json_real(rate));
    json_object_set_new(j, "prompt_tokens_per_second", json_real(fed));
    if (r->sampling.draft > 0 || r->load.draft_model) {
      json_object_set_new(j, "drafted", json_integer(result->drafted));
      json_object_set_new(j, "accepted", json_integer(result->accepted));
    }
    if (g->in.budgets.layers > 0) {
      json_object_set_new(j, "policy", json_string(wn_policy_name(g->in.budgets.policy)));
      json_object_set_new(j, "when", json_string(wn_when_name(g->in.budgets.when)));
      json_object_set_new(j, "kv_peak_bytes", json_integer((json_int_t)wn_session_peak_bytes(g->session)));
      json_object_set_new(j, "budget_tokens", json_integer(wn_budgets_total(&g->in.budgets)));
    }
    json_object_set_new(j, "cache", json_string(wn_cache_format_name(g->in.budgets.cache)));
    json_object_set_new(j, "kv_bytes", json_integer((json_int_t)wn_session_kv_bytes(g->session)));
    json_object_set_new(j, "peak_resident_bytes", json_integer((json_int_t)cli_peak_resident()));
    if (!code) return cli_print_json(j);
    json_decref(j);
    return code;
  }
  putchar('\n');
  fflush(stdout);
  if (result->end == WN_GENERATE_CONTEXT)
    cli_note(&r->common,
             "winnow: stopped after %" PRId64 " tokens: the model has learned positions for %" PRId64
             " tokens and no more",
             result->tokens, wn_model_config_get(g->in.model)->context);
  if (isatty(STDERR_FILENO) || r->common.verbose || g->in.budgets.layers > 0)
    cli_note(&r->common, "%" PRId64 " tokens, %.1f tok/s; prompt %zu tokens, %.1f tok/s; cache %s", result->tokens,
             rate, g->prompt_count, fed, cli_bytes((double)wn_session_kv_bytes(g->session)));
  return 0;
}

/* ---- a prompt for each line of a file ---- */

/* `template` with {document} replaced; *out's text is malloc'd, NULL: out of memory. */
static void generate_fill_template(const char *template, const char *document, struct cli_counts_prompt *out) {
  const char *at = strstr(template, "{document}");
  const size_t room = strlen(template) + strlen(document) + 1;
  char *text = malloc(room);
  if (text) snprintf(text, room, "%.*s%s%s", (int)(at - template), template, document, at + strlen("{document}"));
  *out = (struct cli_counts_prompt){.template = template,
                                    .documented = true,
                                    .text = text,
                                    .bytes = text ? strlen(text) : 0,
                                    .document = (size_t)(at - template),
                                    .document_bytes = strlen(document)};
}

/* Answers one line: prints the object with its prediction added. */
static int generate_predict(wn_context *ctx, struct request *r, struct run *g, int64_t line, const char *text,
                            FILE *out) {
  json_error_t error;
  json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &error);
  const char *document = json_string_value(json_object_get(object, "document"));
  if (!document) {
    const int code = cli_error("%s:%" PRId64 ": %s", r->jsonl, line,
                               object ? "expected an object with the string \"document\"" : error.text);
    json_decref(object);
    return code;
  }
  struct cli_counts_prompt prompt;
  generate_fill_template(r->prompt, document, &prompt);
  g->document = line;
  int code = prompt.text ? generate_prepare(ctx, r, g, &prompt) : cli_error("out of memory");
  if (!code) code = generate_draw(ctx, r, g);
  if (!code && g->interrupted) code = CLI_INTERRUPTED;
  if (!code)
    code =
        generate_put_answer(ctx, g, "prediction", json_string(""), object); /* in place of bytes that are not UTF-8 */
  if (!code) {
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)g->prompt_count));
    json_object_set_new(object, "tokens", json_integer(g->result.tokens));
    json_object_set_new(object, "stopped", json_string(generate_stopped(g)));
    if (json_dumpf(object, out, JSON_PRESERVE_ORDER | JSON_COMPACT) || fputc('\n', out) == EOF || fflush(out))
      code = cli_error("%s: cannot be written", r->out);
  }
  free((char *)(uintptr_t)prompt.text);
  json_decref(object);
  generate_clear_prompt(g);
  return code;
}

static int generate_predict_all(wn_context *ctx, struct request *r, struct run *g) {
  int64_t line = 0;
  int code = cli_read_lines(ctx, r->jsonl, &g->text);
  if (code) return code;
  FILE *out = cli_open_output(r->out);
  if (!out) return 1;
  for (char *at = g->text, *text; !code && (text = cli_next_line(&at, &line));)
    code = generate_predict(ctx, r, g, line, text, out);
  if (fclose(out) && !code) code = cli_error("%s: %s", r->out, strerror(errno));
  return code;
}

static const struct cli_option generate_options[] = {
    CLI_MODEL_OPTION(struct request, load.model),
    CLI_CHECK_OPTION(struct request, load.check),
    CLI_WEIGHTS_OPTION(struct request, load.weights),
    CLI_ADAPTER_OPTION(struct request, load.adapter),
    CLI_OPTION(struct request, prompt, "prompt", "TEXT",
               "the text to continue; with an encoder: <extra_id_0>, <extra_id_1>, ... where a span is missing"),
    CLI_OPTION(struct request, prompt_file, "prompt-file", "FILE",
               "the prompt from a file; -: standard input, the default unless it is a terminal"),
    CLI_OPTION(struct request, jsonl, "jsonl", "FILE",
               "JSON lines: each line's \"document\" replaces {document} in --prompt; results go to --out"),
    CLI_OPTION(struct request, out, "out", "FILE", "with --jsonl: receives the lines, each with its \"prediction\""),
    CLI_TOKENIZER_OPTION(struct request, load.tokenizer),
    CLI_OPTION(struct request, config, "config", "FILE",
               "the recipe of an encoder-decoder, for its sentinels; else the checkpoint's"),
    CLI_OPTION(struct request, load_state, "load-state", "FILE", "continues the text whose state --save-state wrote"),
    CLI_OPTION(struct request, save_state, "save-state", "FILE", "writes what the cache holds at the end"),
    CLI_OPTION(struct request, tokens, "tokens", "N", "the most tokens to draw", .min = 0, .max = 1 << 24),
    CLI_SAMPLING_OPTIONS(struct request, sampling),
    CLI_DRAFT_OPTION(struct request, sampling.draft),
    CLI_DRAFT_MODEL_OPTION(struct request, load.draft_model),
    CLI_STOP_OPTION(struct request, stop),
    CLI_FORMAT_OPTIONS(struct request, format),
    CLI_OPTION(struct request, ignore_end, "ignore-end", NULL, "continue after the token that ends a document"),
    CLI_ATTENTION_OPTIONS(struct request, load.attention),
    CLI_OPTION(struct request, chat, "chat", NULL, "the prompt is a message, put into the model's chat template"),
    CLI_DIALOGUE_OPTIONS(struct request, dialogue),
    CLI_COUNTS_OPTIONS(struct request, counts),
    CLI_BUDGETS_OPTIONS(struct request, load.budgets),
    CLI_CACHE_OPTION(struct request, load.budgets),
    CLI_COMMON_OPTIONS(struct request, common)};

static const struct cli_spec generate_spec = {
    .command = "winnow generate",
    .summary =
        "Continues a prompt. The text streams to standard output; --json gives text, token ids and speed at the\n"
        "end. An encoder-decoder trained on span corruption writes the missing spans of its prompt.",
    CLI_TABLE(generate_options),
    CLI_OPTIONAL("[DIR]"),
    .epilog = CLI_SAMPLING_EPILOG};

static int generate_check_options(const struct request *r, int code) {
  const char *command = generate_spec.command;
  if (code != CLI_GO) return code;
  if (r->prompt && r->prompt_file) return cli_usage_error(command, "--prompt and --prompt-file exclude each other");
  if (r->out && !strcmp(r->out, "-")) return cli_usage_error(command, "--out: expected a file");
  if (r->jsonl && (r->load_state || r->save_state))
    return cli_usage_error(command, "--load-state and --save-state are for one text, without --jsonl");
  if (!r->jsonl != !r->out) return cli_usage_error(command, "--jsonl and --out go together");
  const char *document = r->jsonl && r->prompt ? strstr(r->prompt, "{document}") : NULL;
  if (r->jsonl && (!document || strstr(document + 1, "{document}")))
    return cli_usage_error(command, "--jsonl needs a --prompt with {document} in it, once");
  if (!r->chat && (r->dialogue.system || r->dialogue.name))
    return cli_usage_error(command, "--system and --template need --chat");
  if (r->ignore_end && cli_format_is_given(&r->format))
    return cli_usage_error(command, "--ignore-end: a text that is JSON ends where it is complete");
  return cli_counts_check(command, &r->counts, r->jsonl != NULL, r->prompt, cli_format_check(command, &r->format));
}

/* Answers one prompt. */
static int generate_once(wn_context *ctx, struct request *r, struct run *g) {
  struct cli_counts_prompt prompt = {0};
  int code = generate_read_prompt(ctx, r, g, &prompt.text, &prompt.bytes);
  prompt.template = prompt.text;
  g->document = 1;
  if (!code) code = generate_prepare(ctx, r, g, &prompt);
  if (code) return code;
  cli_signals_begin(ctx);
  code = generate_draw(ctx, r, g);
  cli_signals_end();
  if (!code && r->save_state && wn_session_save(ctx, g->session, r->save_state) != WN_OK)
    code = cli_error("--save-state: %s", wn_context_error(ctx));
  if (!code) code = generate_report(ctx, r, g);
  return !code && g->interrupted ? CLI_INTERRUPTED : code;
}

static int generate_lines(wn_context *ctx, struct request *r, struct run *g) {
  cli_signals_begin(ctx);
  const int code = generate_predict_all(ctx, r, g);
  cli_signals_end();
  return code;
}

int cmd_generate(int argc, char **argv) {
  struct request r = {.common = CLI_COMMON_DEFAULTS, .load = CLI_LOADING_DEFAULTS, .tokens = 200};
  wn_context *ctx = NULL;
  cli_sampling_init(&r.sampling);
  int code = cli_parse_model(&generate_spec, argc, argv, &r, true, &r.load.model);
  if (code == CLI_GO) code = cli_budgets_check(generate_spec.command, &r.load.budgets);
  code = generate_check_options(&r, code);
  if (code == CLI_GO) code = cli_context_open(&r.common, &ctx);
  struct run g = {.streams = !r.jsonl && !r.common.json, .request = &r};
  if (code == CLI_GO) code = generate_load(ctx, &r, &g);
  if (code == CLI_GO) code = cli_sampling_check(generate_spec.command, &r.sampling, g.in.model);
  if (code == CLI_GO) code = r.jsonl ? generate_lines(ctx, &r, &g) : generate_once(ctx, &r, &g);
  generate_clear(&g);
  cli_list_clear(&r.load.attention.sets);
  cli_list_clear(&r.stop);
  cli_list_clear(&r.counts.texts);
  cli_list_clear(&r.counts.spans);
  cli_sampling_clear(&r.sampling);
  wn_context_destroy(ctx);
  return code;
}
