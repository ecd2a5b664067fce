/* winnow chat: a conversation with a model. What has been said stays in the session's cache: a turn feeds only what is
 * new. On a terminal it asks for messages and streams answers; from a pipe each line is a message. */
#include "cmd.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <winnow/chat.h>
#include <winnow/generate.h>
#include <winnow/model.h>
#include "args.h"
#include "format.h"
#include "load.h"
#include "signals.h"
#include "ui.h"

struct request {
  struct cli_common common;
  struct cli_loading load;
  struct cli_sampling sampling;
  struct cli_dialogue dialogue;
  struct cli_format format;
  struct cli_list stop;
  int64_t tokens, context;
};

struct chat {
  wn_context *ctx;
  const struct request *r;
  struct cli_loaded in;
  wn_session *session;
  wn_constraint *constraint;
  struct cli_dialogue_choice dialogue;
  int32_t *pending; /* tokens that the session has not seen yet, [pending_count] */
  size_t pending_count, room;
  bool opened; /* something has been said */
  bool terminal;
  uint64_t drawn; /* since the conversation began: the sampling's steps */
  int64_t turns, tokens, fed;
  double feed_seconds, draw_seconds;
  json_t *log; /* --json: a list of turns */
};

/* --- the pending tokens --- */

static int chat_add_pending(struct chat *c, const int32_t *ids, size_t count) {
  if (c->pending_count + count > c->room) {
    size_t room = 2 * (c->pending_count + count);
    int32_t *wider = realloc(c->pending, room * sizeof *wider);
    if (!wider) return cli_error("out of memory");
    c->pending = wider;
    c->room = room;
  }
  if (count) memcpy(c->pending + c->pending_count, ids, count * sizeof *ids);
  c->pending_count += count;
  return 0;
}

/* The first `count` of them have been seen. */
static void chat_drop_pending(struct chat *c, int64_t count) {
  c->pending_count -= (size_t)count;
  memmove(c->pending, c->pending + count, c->pending_count * sizeof *c->pending);
}

static int64_t chat_room_left(const struct chat *c) {
  return c->r->context - wn_session_position(c->session) - (int64_t)c->pending_count;
}

/* --- a turn --- */

struct answer {
  const struct chat *chat;
  FILE *copy;
};

static bool chat_on_piece(void *user, const wn_generate_piece *piece) {
  const struct answer *a = user;
  fwrite(piece->text, 1, piece->bytes, a->copy);
  return a->chat->r->common.json || (fwrite(piece->text, 1, piece->bytes, stdout) == piece->bytes && !fflush(stdout));
}

/* Feeds what is pending and draws until the model ends its turn; *text, malloc'd, is what it wrote. An interrupt leaves
 * what has not been fed for the next turn, and so does an answer that is cut its last token. */
static wn_status chat_answer(struct chat *c, wn_generate_result *result, char **text, size_t *bytes) {
  struct answer a = {c, open_memstream(text, bytes)};
  wn_generate_options o;
  if (!a.copy) return WN_ERR_MEMORY;
  wn_generate_options_init(&o, sizeof o);
  const int64_t room = chat_room_left(c);
  o.prompt = c->pending;
  o.prompt_count = (int64_t)c->pending_count;
  o.tok = c->in.tok;
  o.first_step = c->drawn;
  o.max_tokens = c->r->tokens < room ? c->r->tokens : room;
  o.stop_strings = c->r->stop.items;
  o.stop_string_count = c->r->stop.count;
  o.constraint = c->constraint;
  o.piece = chat_on_piece;
  o.user = &a;
  cli_sampling_apply(&c->r->sampling, &o);
  wn_status status = wn_session_generate(c->ctx, c->session, &o, result);
  if (result->end == WN_GENERATE_LENGTH && o.max_tokens < c->r->tokens) result->end = WN_GENERATE_CONTEXT;
  if (fclose(a.copy) && status == WN_OK) status = WN_ERR_MEMORY;
  c->drawn += result->steps;
  c->tokens += result->tokens;
  c->fed += result->prompt_tokens;
  c->feed_seconds += result->prompt_seconds;
  c->draw_seconds += result->token_seconds;
  chat_drop_pending(c, result->prompt_tokens);
  if (status == WN_OK && result->unfed >= 0 && chat_add_pending(c, &result->unfed, 1)) status = WN_ERR_MEMORY;
  return status == WN_OK && ferror(stdout) ? WN_ERR_IO : status;
}

static void chat_forget(struct chat *c) {
  wn_session_reset(c->session);
  c->pending_count = 0;
  c->drawn = 0;
  c->opened = false;
}

static int chat_log_turn(struct chat *c, const char *message, const char *text, size_t bytes,
                         const wn_generate_result *result) {
  json_t *said = json_string(message), *string = json_stringn(text, bytes);
  return json_array_append_new(c->log,
                               json_pack("{s:o, s:o, s:s, s:I}", "user", said ? said : json_null(), "answer",
                                         string ? string : json_null(), "stopped", wn_generate_end_name(result->end),
                                         "tokens", (json_int_t)result->tokens))
             ? cli_error("out of memory")
             : 0;
}

static int chat_turn(struct chat *c, const char *message) {
  const wn_chat_message messages[2] = {{WN_CHAT_SYSTEM, c->dialogue.system ? c->dialogue.system : ""},
                                       {WN_CHAT_USER, message}};
  int first = c->opened || !c->dialogue.system ? 1 : 0;
  int32_t *ids = NULL;
  size_t n = 0;
  wn_status status =
      wn_chat_encode(c->ctx, c->in.tok, c->dialogue.chat, messages + first, 2 - first, !c->opened, &ids, &n);
  if (status != WN_OK) {
    cli_error("the message: %s", wn_context_error(c->ctx));
    return c->terminal ? 0 : 1;
  }
  if (chat_room_left(c) < (int64_t)n + 1) {
    wn_tokens_free(ids);
    cli_error("the conversation has %" PRId64 " tokens and the message %zu: more than the context of %" PRId64
              " (--context); /reset begins a new one",
              wn_session_position(c->session) + (int64_t)c->pending_count, n, c->r->context);
    return c->terminal ? 0 : 1;
  }
  int code = chat_add_pending(c, ids, n);
  wn_tokens_free(ids);
  if (code) return code;
  c->opened = true;
  char *text = NULL;
  size_t bytes = 0;
  wn_generate_result result;
  cli_signals_begin(c->ctx);
  status = chat_answer(c, &result, &text, &bytes);
  cli_signals_end();
  bool stopped = wn_context_cancelled(c->ctx);
  wn_context_resume(c->ctx);
  c->turns++;
  if (status != WN_OK) {
    code = status == WN_ERR_IO && ferror(stdout) ? 1 : cli_fail(c->ctx, status);
  } else if (c->log) {
    code = chat_log_turn(c, message, text ? text : "", bytes, &result);
  } else {
    putchar('\n');
    fflush(stdout);
    if (result.end == WN_GENERATE_CONTEXT)
      cli_note(&c->r->common, "winnow: the context of %" PRId64 " tokens is full; /reset begins a new conversation",
               c->r->context);
    if (result.end == WN_GENERATE_CANCELLED) cli_note(&c->r->common, "winnow: stopped");
  }
  free(text);
  return code ? code : stopped && !c->terminal ? CLI_INTERRUPTED : 0;
}

/* --- messages --- */

static volatile sig_atomic_t left_prompt;
static void chat_on_interrupt(int number) {
  (void)number;
  left_prompt = 1;
}

#define MESSAGE_LIMIT ((size_t)1 << 20)

/* A line of standard input without its end, added to text[*count..MESSAGE_LIMIT]. 1 when there is one, 0 at the end of
 * the input, -1 where the message becomes longer than MESSAGE_LIMIT. */
static int chat_read_line(char *text, size_t *count) {
  int c, any = 0;
  while ((c = getchar()) != EOF && c != '\n') {
    if (*count == MESSAGE_LIMIT) return -1;
    text[(*count)++] = (char)c;
    any = 1;
  }
  return any || c == '\n';
}

/* A message: a line, or several where each but the last ends in a backslash. *line is free()d by the caller; false at
 * the end of the input, and after reporting a message that is too long (*code). On a terminal Ctrl-C ends it too. */
static bool chat_read_message(const struct chat *c, char **line, int *code) {
  size_t n = 0;
  struct sigaction quit = {.sa_handler = chat_on_interrupt}, before; /* without SA_RESTART: reading returns */
  char *text = *line = malloc(MESSAGE_LIMIT + 1);
  if (!text) {
    *code = cli_error("out of memory");
    return false;
  }
  left_prompt = 0;
  if (c->terminal) sigaction(SIGINT, &quit, &before);
  bool more = true, any = false;
  while (more) {
    if (c->terminal && !c->r->common.quiet) fputs(any ? ". " : "> ", stderr);
    const size_t begin = n;
    errno = 0;
    const int got = chat_read_line(text, &n);
    if (got < 0) *code = cli_error("standard input: a message of more than %zu bytes", MESSAGE_LIMIT);
    if (got == 0 && errno == EINTR) clearerr(stdin);
    if (got <= 0) break;
    any = true;
    while (n > begin && text[n - 1] == '\r') n--;
    more = n > begin && text[n - 1] == '\\';
    if (more) text[n - 1] = '\n';
  }
  text[n] = 0;
  if (c->terminal) sigaction(SIGINT, &before, NULL);
  if (left_prompt || *code) any = false;
  if (any) return true;
  free(text);
  *line = NULL;
  if (c->terminal) fputc('\n', stderr);
  return false;
}

/* "/...": 1 handled, 0 a message, -1 leave. */
static int chat_command(struct chat *c, const char *line) {
  if (line[0] != '/') return 0;
  if (!strcmp(line, "/quit") || !strcmp(line, "/exit")) return -1;
  if (!strcmp(line, "/reset")) {
    chat_forget(c);
    cli_note(&c->r->common, "winnow: a new conversation");
    return 1;
  }
  if (!strcmp(line, "/help") || !strcmp(line, "/?")) {
    fputs("/reset  begin a new conversation\n/stats  tokens, speed and the cache's size\n/quit   leave "
          "(so does Ctrl-D, and Ctrl-C while no answer is written)\n"
          "Ctrl-C stops an answer. A line that ends in \\ continues in the next.\n",
          stderr);
    return 1;
  }
  if (!strcmp(line, "/stats")) {
    cli_note(&c->r->common, "%" PRId64 " of %" PRId64 " tokens of context; cache %s", wn_session_position(c->session),
             c->r->context, cli_bytes((double)wn_session_kv_bytes(c->session)));
    return 1;
  }
  if (!c->terminal) return 0; /* a message that begins with a slash */
  cli_note(&c->r->common, "winnow: no such command; /help lists them");
  return 1;
}

static int chat_report(struct chat *c) {
  double drawn = c->draw_seconds > 0 ? (double)c->tokens / c->draw_seconds : 0;
  double fed = c->feed_seconds > 0 ? (double)c->fed / c->feed_seconds : 0;
  if (c->log) {
    json_t *log = c->log;
    c->log = NULL;
    return cli_print_json(json_pack("{s:o, s:s, s:I, s:I, s:f, s:f, s:s, s:I, s:I}", "turns", log, "template",
                                    wn_chat_template_name(c->dialogue.chat), "tokens", (json_int_t)c->tokens,
                                    "prompt_tokens", (json_int_t)c->fed, "tokens_per_second", drawn,
                                    "prompt_tokens_per_second", fed, "cache", wn_cache_format_name(c->in.budgets.cache),
                                    "kv_bytes", (json_int_t)wn_session_kv_bytes(c->session), "peak_resident_bytes",
                                    (json_int_t)cli_peak_resident()));
  }
  if (c->turns)
    cli_note(&c->r->common, "%" PRId64 " tokens, %.1f tok/s; messages %" PRId64 " tokens, %.1f tok/s; cache %s",
             c->tokens, drawn, c->fed, fed, cli_bytes((double)wn_session_kv_bytes(c->session)));
  return 0;
}

static int open_chat(struct chat *c, struct request *r) {
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
  if (r->context > config->context)
    cli_note(&r->common, "winnow: --context is %" PRId64 ", %s was made for %" PRId64 " tokens", r->context,
             r->load.model, config->context);
  return cli_session_open(c->ctx, &c->in, r->context, &c->session);
}

static void close_chat(struct chat *c) {
  json_decref(c->log);
  wn_session_destroy(c->session);
  wn_constraint_destroy(c->constraint);
  cli_dialogue_clear(&c->dialogue);
  cli_loaded_clear(&c->in);
  free(c->pending);
}

static const struct cli_option chat_options[] = {
    CLI_MODEL_OPTION(struct request, load.model),
    CLI_CHECK_OPTION(struct request, load.check),
    CLI_WEIGHTS_OPTION(struct request, load.weights),
    CLI_DIALOGUE_OPTIONS(struct request, dialogue),
    CLI_OPTION(struct request, tokens, "tokens", "N", "the most tokens of an answer", .min = 1, .max = 1 << 24),
    CLI_OPTION(struct request, context, "context", "N", "tokens of a conversation; 0: the model's, at most 4096",
               .min = 0, .max = 1 << 24),
    CLI_TOKENIZER_OPTION(struct request, load.tokenizer),
    CLI_SAMPLING_OPTIONS(struct request, sampling),
    CLI_STOP_OPTION(struct request, stop),
    CLI_FORMAT_OPTIONS(struct request, format),
    CLI_ATTENTION_OPTIONS(struct request, load.attention),
    CLI_BUDGETS_OPTIONS(struct request, load.budgets),
    CLI_CACHE_OPTION(struct request, load.budgets),
    CLI_COMMON_OPTIONS(struct request, common)};

static const struct cli_spec chat_spec = {
    .command = "winnow chat",
    .summary =
        "A conversation with a model. On a terminal /help lists the commands. From a pipe each line is a message;\n"
        "a line that ends in \\ continues in the next.",
    .options = chat_options,
    .option_count = CLI_COUNT(chat_options),
    .positional = "[MODEL]",
    .positional_max = 1};

int cmd_chat(int argc, char **argv) {
  struct request r = {.common = CLI_COMMON_DEFAULTS, .load = CLI_LOADING_DEFAULTS, .tokens = 1024};
  cli_sampling_init(&r.sampling);
  struct cli_list models = {0};
  int code = cli_parse(&chat_spec, argc, argv, &r, &models);
  code = cli_model_argument(&chat_spec, code, true, &models, &r.load.model);
  if (code == CLI_GO) code = cli_budgets_check(chat_spec.command, &r.load.budgets);
  if (code == CLI_GO) code = cli_format_check(chat_spec.command, &r.format);
  struct chat c = {.r = &r, .terminal = isatty(STDIN_FILENO) && !r.common.json};
  if (code == CLI_GO) code = cli_context_open(&r.common, &c.ctx);
  if (code) {
    cli_list_clear(&r.load.attention.sets);
    cli_list_clear(&r.stop);
    cli_sampling_clear(&r.sampling);
    return code;
  }
  code = open_chat(&c, &r);
  if (!code) code = cli_sampling_check(chat_spec.command, &r.sampling, wn_model_config_get(c.in.model)->vocab_size);
  if (!code) code = cli_format_open(c.ctx, &r.format, c.in.tok, &c.constraint);
  if (!code && r.common.json && !(c.log = json_array())) code = cli_error("out of memory");
  if (!code && c.terminal)
    cli_note(&r.common, "%s, template %s, a context of %" PRId64 " tokens; /help for help", r.load.model,
             wn_chat_template_name(c.dialogue.chat), r.context);
  char *line = NULL;
  while (!code && chat_read_message(&c, &line, &code)) {
    int done = chat_command(&c, line);
    if (done == 0 && line[strspn(line, " \t\n")]) code = chat_turn(&c, line);
    free(line);
    if (done < 0) break;
  }
  int reported = code == 0 || code == CLI_INTERRUPTED ? chat_report(&c) : 0;
  close_chat(&c);
  cli_list_clear(&r.stop);
  cli_sampling_clear(&r.sampling);
  wn_context_destroy(c.ctx);
  return code ? code : reported;
}
