/* winnow chat: a conversation with a model (chat.h). The conversation stays in the session's cache, so a turn feeds
 * only what is new. On a terminal it asks for messages and streams answers; from a pipe each line is a message or a
 * command. */
#include "cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "chat.h"
#include "chat_input.h"
#include "signals.h"

static double chat_rate(int64_t tokens, double seconds) {
  return seconds > 0 ? (double)tokens / seconds : 0;
}

/* --- a turn --- */

static int chat_log_answer(struct chat *c, const struct chat_result *result, const struct chat_kept *kept) {
  const struct chat_turn *turn = &c->turns[c->turn_count - 1];
  json_t *said = json_string(turn->message), *text = json_string(turn->text);
  return json_array_append_new(c->log,
                               json_pack("{s:o, s:o, s:s, s:I, s:f, s:I, s:I}", "user", said ? said : json_null(),
                                         "answer", text ? text : json_null(), "stopped",
                                         wn_generate_end_name(result->end), "tokens", (json_int_t)result->tokens,
                                         "tokens_per_second", chat_rate(result->tokens, result->seconds), "kept",
                                         (json_int_t)kept->kept, "forgotten", (json_int_t)(kept->tokens - kept->kept)))
             ? cli_error("out of memory")
             : 0;
}

static void chat_print_answer(const struct chat *c, const struct chat_result *result, const struct chat_kept *kept) {
  const struct cli_common *common = &c->r->common;
  putchar('\n');
  fflush(stdout);
  if (result->end == WN_GENERATE_CONTEXT)
    cli_note(common, "winnow: the answer ends here: it fills the context of %" PRId64 " tokens (--context)",
             c->capacity);
  if (result->end == WN_GENERATE_CANCELLED) cli_note(common, "winnow: stopped");
  if (c->terminal)
    cli_note(common,
             "[%" PRId64 " tokens, %.1f tok/s; kept %" PRId64 " of %" PRId64 ", forgot %" PRId64
             "; a layer holds %.0f]",
             result->tokens, chat_rate(result->tokens, result->seconds), kept->kept, kept->tokens,
             kept->tokens - kept->kept, kept->mean);
}

static int chat_reply(struct chat *c) {
  struct chat_result result;
  struct chat_kept kept;
  const int code = chat_answer(c, &result);
  if (code && code != CLI_INTERRUPTED) return code;
  int reported = chat_count_kept(c, &kept);
  if (!reported && c->log) reported = chat_log_answer(c, &result, &kept);
  if (!reported && !c->log) chat_print_answer(c, &result, &kept);
  return reported ? reported : code;
}

/* Answers a message. On a terminal an error is only printed; from a pipe it ends the program. */
static int chat_say(struct chat *c, const char *message) {
  if (chat_add_turn(c, message)) return c->terminal ? 0 : 1;
  return chat_reply(c);
}

static int chat_converse(struct chat *c) {
  struct chat_input *in = chat_input_open(c->terminal, c->r->common.quiet, !c->r->no_history);
  char *line;
  bool empty;
  int code = in ? 0 : cli_error("out of memory");
  for (bool leaves = false; !code && !leaves;) {
    const enum chat_read got = chat_input_read(in, &line, &empty);
    if (got == CHAT_READ_END) break;
    if (got == CHAT_READ_FAILED && !c->terminal) code = 1;
    if (got == CHAT_READ_DROPPED && empty) cli_note(&c->r->common, "winnow: Ctrl-D or /quit leaves");
    if (got != CHAT_READ_MESSAGE) continue;
    const enum chat_next next = chat_command(c, line);
    if (next == CHAT_MESSAGE && line[strspn(line, " \t\n")]) code = chat_say(c, line);
    if (next == CHAT_ANSWER) code = chat_reply(c);
    leaves = next == CHAT_LEAVE;
    free(line);
  }
  chat_input_close(in);
  return code;
}

/* --- the end --- */

static int chat_report_json(struct chat *c) {
  json_t *log = c->log;
  c->log = NULL;
  json_t *result = json_pack(
      "{s:o, s:s, s:I, s:I, s:f, s:f, s:s, s:I, s:I}", "turns", log, "template",
      wn_chat_template_name(c->dialogue.chat), "tokens", (json_int_t)c->tokens, "prompt_tokens", (json_int_t)c->fed,
      "tokens_per_second", chat_rate(c->tokens, c->draw_seconds), "prompt_tokens_per_second",
      chat_rate(c->fed, c->feed_seconds), "cache", wn_cache_format_name(c->in.budgets.cache), "kv_bytes",
      (json_int_t)wn_session_kv_bytes(c->session), "peak_resident_bytes", (json_int_t)cli_peak_resident());
  json_object_set_new(result, "held", chat_turns_json(c));
  if (c->r->show_context) json_object_set_new(result, "context", chat_context_json(c));
  return cli_print_json(result);
}

static int chat_report(struct chat *c) {
  struct chat_kept kept;
  if (c->log) return chat_report_json(c);
  if (c->r->show_context && chat_print_context(c)) return 1;
  if (!c->answers) return 0;
  if (chat_count_kept(c, &kept)) return 1;
  cli_note(&c->r->common,
           "%" PRId64 " tokens, %.1f tok/s; messages %" PRId64 " tokens, %.1f tok/s; kept %" PRId64 " of %" PRId64
           ", forgot %" PRId64 "; cache %s",
           c->tokens, chat_rate(c->tokens, c->draw_seconds), c->fed, chat_rate(c->fed, c->feed_seconds), kept.kept,
           kept.tokens, kept.tokens - kept.kept, cli_bytes((double)wn_session_kv_bytes(c->session)));
  return 0;
}

/* --- the beginning --- */

static int chat_open(struct chat *c) {
  struct chat_request *r = c->r;
  int code = cli_load(c->ctx, "winnow chat", &r->common, &r->load, true, &c->in);
  if (code) return code;
  const wn_model_config *config = wn_model_config_get(c->in.model);
  if (config->encoder.layers > 0)
    return cli_error("%s is an encoder-decoder, which answers no messages; winnow generate fills in spans",
                     r->load.model);
  code = cli_dialogue_choose(c->ctx, &r->dialogue, r->load.model, c->in.tok, &c->dialogue);
  if (code) return code;
  if (r->context == 0) r->context = config->context < 4096 ? config->context : 4096;
  if (r->context > config->context && config->position == WN_POS_LEARNED)
    return cli_error("%s has learned positions for %" PRId64 " tokens, --context is %" PRId64, r->load.model,
                     config->context, r->context);
  code = chat_open_session(c);
  if (!code && !c->endless && r->context > config->context)
    cli_note(&r->common, "winnow: --context is %" PRId64 ", %s was made for %" PRId64 " tokens", r->context,
             r->load.model, config->context);
  if (!code) code = cli_sampling_check("winnow chat", &r->sampling, c->in.model);
  if (!code) code = cli_format_open(c->ctx, &r->format, c->in.tok, &c->constraint);
  if (!code && r->common.json && !(c->log = json_array())) code = cli_error("out of memory");
  if (code || !c->terminal) return code;
  char room[64] = "no limit to the conversation";
  if (!c->endless) snprintf(room, sizeof room, "a context of %" PRId64, c->capacity);
  cli_note(&r->common, "%s, template %s, %s; /help for help", r->load.model, wn_chat_template_name(c->dialogue.chat),
           room);
  return 0;
}

static const struct cli_option chat_options[] = {
    CLI_MODEL_OPTION(struct chat_request, load.model),
    CLI_CHECK_OPTION(struct chat_request, load.check),
    CLI_WEIGHTS_OPTION(struct chat_request, load.weights),
    CLI_ADAPTER_OPTION(struct chat_request, load.adapter),
    CLI_DIALOGUE_OPTIONS(struct chat_request, dialogue),
    CLI_OPTION(struct chat_request, tokens, "tokens", "N", "the most tokens of an answer", .min = 1, .max = 1 << 24),
    CLI_OPTION(
        struct chat_request, context, "context", "N",
        "tokens of a conversation, after which the oldest turns are forgotten; 0: the model's, at most 4096; with "
        "--cache-positions there is no limit",
        .min = 0, .max = 1 << 24),
    CLI_TOKENIZER_OPTION(struct chat_request, load.tokenizer),
    CLI_SAMPLING_OPTIONS(struct chat_request, sampling),
    CLI_DRAFT_OPTION(struct chat_request, sampling.draft),
    CLI_DRAFT_MODEL_OPTION(struct chat_request, load.draft_model),
    CLI_STOP_OPTION(struct chat_request, stop),
    CLI_FORMAT_OPTIONS(struct chat_request, format),
    CLI_ATTENTION_OPTIONS(struct chat_request, load.attention),
    CLI_BUDGETS_OPTIONS(struct chat_request, load.budgets),
    CLI_PIN_OPTION(struct chat_request, pin),
    CLI_CACHE_OPTION(struct chat_request, load.budgets),
    CLI_OPTION(struct chat_request, show_context, "show-context", NULL,
               "at the end print the conversation, what no layer holds any longer struck through"),
    CLI_OPTION(struct chat_request, no_history, "no-history", NULL,
               "neither read nor write $XDG_STATE_HOME/winnow/chat_history"),
    CLI_COMMON_OPTIONS(struct chat_request, common)};

static const struct cli_spec chat_spec = {
    .command = "winnow chat",
    .summary =
        "A conversation with a model; /help lists its commands. From a pipe each line is a message or a command,\n"
        "with a blank before it a message in any case; a line that ends in \\ continues in the next.",
    CLI_TABLE(chat_options),
    CLI_OPTIONAL("[MODEL]"),
    .epilog = CLI_SAMPLING_EPILOG};

int cmd_chat(int argc, char **argv) {
  struct chat_request r = {.common = CLI_COMMON_DEFAULTS, .load = CLI_LOADING_DEFAULTS, .pin = "none", .tokens = 1024};
  cli_sampling_init(&r.sampling);
  int code = cli_parse_model(&chat_spec, argc, argv, &r, true, &r.load.model);
  if (code == CLI_GO) code = cli_budgets_check(chat_spec.command, &r.load.budgets);
  if (code == CLI_GO) code = cli_format_check(chat_spec.command, &r.format);
  struct chat c = {.r = &r, .terminal = isatty(STDIN_FILENO) && !r.common.json};
  if (code == CLI_GO) code = cli_context_open(&r.common, &c.ctx);
  const bool opened = c.ctx != NULL;
  if (opened) code = chat_open(&c);
  if (opened && !code) code = chat_converse(&c);
  const int reported = opened && c.session && (code == 0 || code == CLI_INTERRUPTED) ? chat_report(&c) : 0;
  chat_close(&c);
  cli_list_clear(&r.load.attention.sets);
  cli_list_clear(&r.stop);
  cli_sampling_clear(&r.sampling);
  wn_context_destroy(c.ctx);
  return code ? code : reported;
}
