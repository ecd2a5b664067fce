/* The commands of a conversation (/set, /regen, ...), one row each. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "chat.h"

/* --- /set --- */

static const struct cli_option settings[] = {
    CLI_OPTION(struct chat_request, tokens, "tokens", "N", "the most tokens of an answer", .min = 1, .max = 1 << 24),
    CLI_SAMPLING_OPTIONS(struct chat_request, sampling), CLI_BUDGETS_OPTIONS(struct chat_request, load.budgets)};
static const struct cli_spec settings_spec = {.command = "/set", CLI_TABLE(settings)};

static const struct cli_option *command_setting(const char *name, size_t bytes) {
  for (int i = 0; i < settings_spec.option_count; i++)
    if (!strncmp(settings[i].name, name, bytes) && !settings[i].name[bytes]) return &settings[i];
  return NULL;
}

static void command_print_setting(const struct chat *c, const struct cli_option *o) {
  char value[512];
  cli_option_value(o, c->r, value, sizeof value);
  fprintf(stderr, "  %-20s%s\n", o->name, value);
}

/* Applies new budgets to the conversation: opens another session, which reads it again. */
static int command_apply_budgets(struct chat *c) {
  const wn_budgets before = c->in.budgets;
  int code = cli_budgets_check("/set", &c->r->load.budgets);
  if (code) return code;
  c->in.budgets = (wn_budgets){0};
  code = cli_budgets_load(c->ctx, &c->r->load.budgets, c->in.model, &c->in.budgets);
  if (!code) code = chat_open_session(c);
  wn_budgets old = code ? c->in.budgets : before;
  if (code) c->in.budgets = before;
  wn_budgets_clear(&old);
  return code;
}

static int command_apply_biases(struct chat *c) {
  free(c->r->sampling.biases);
  c->r->sampling.biases = NULL;
  return cli_sampling_check("/set", &c->r->sampling, c->in.model);
}

/* Takes NAME VALUE from the words at *at; the chat owns the value. 0, or an exit code after reporting. */
static int command_take_setting(struct chat *c, const char **at, const struct cli_option **row) {
  static const char white[] = " \t";
  const char *name = *at + strspn(*at, white);
  if (!strncmp(name, "--", 2)) name += 2;
  const size_t n = strcspn(name, " \t=");
  const char *value = name + n + strspn(name + n, " \t");
  if (*value == '=') value++;
  const size_t bytes = strcspn(value, white);
  if (!(*row = command_setting(name, n)))
    return cli_usage_error("/set", "there is no setting \"%.*s\"; /set alone shows them", (int)n, name);
  if (bytes == 0) return cli_usage_error("/set", "%s needs a value", (*row)->name);
  const char **items = realloc(c->own.items, ((size_t)c->own.count + 1) * sizeof *items);
  if (!items) return cli_error("out of memory");
  c->own.items = items;
  char *text = strndup(value, bytes);
  if (!text) return cli_error("out of memory");
  items[c->own.count++] = text;
  *at = value + bytes + strspn(value + bytes, white);
  return cli_option_set(&settings_spec, *row, text, c->r);
}

static enum chat_next command_set(struct chat *c, const char *words) {
  const struct chat_request before = *c->r;
  const struct cli_option *row;
  bool budgets = false;
  int code = 0;
  if (!*words)
    for (int i = 0; i < settings_spec.option_count; i++) command_print_setting(c, &settings[i]);
  for (const char *at = words; *at && !code;) {
    code = command_take_setting(c, &at, &row);
    budgets = budgets || (!code && row->at >= offsetof(struct chat_request, load.budgets) &&
                          row->at < offsetof(struct chat_request, load.budgets) + sizeof before.load.budgets);
  }
  if (!code && *words) code = command_apply_biases(c);
  if (!code && budgets) code = command_apply_budgets(c);
  if (!code) {
    for (const char *at = words; *at;) { /* shows the present values */
      const size_t n = strcspn(at, " \t=");
      row = command_setting(at + (strncmp(at, "--", 2) ? 0 : 2), n - (strncmp(at, "--", 2) ? 0 : 2));
      if (row) command_print_setting(c, row);
      at += strcspn(at, " \t");
      at += strspn(at, " \t");
    }
    if (budgets) cli_note(&c->r->common, "winnow: the conversation is read again with the next answer");
    return CHAT_DONE;
  }
  const struct cli_list biases = c->r->sampling.logit_bias; /* the list may have been reallocated */
  wn_logit_bias *read = c->r->sampling.biases;
  *c->r = before;
  c->r->sampling.logit_bias.items = biases.items;
  c->r->sampling.biases = read;
  command_apply_biases(c);
  return CHAT_DONE;
}

/* --- other commands --- */

static enum chat_next command_help(struct chat *c, const char *argument);

static enum chat_next command_reset(struct chat *c, const char *argument) {
  (void)argument;
  chat_forget(c);
  cli_note(&c->r->common, "winnow: a new conversation");
  return CHAT_DONE;
}

static enum chat_next command_regen(struct chat *c, const char *argument) {
  (void)argument;
  if (chat_take_back(c)) return CHAT_ANSWER;
  cli_error("there is no answer to write again");
  return CHAT_DONE;
}

static enum chat_next command_system(struct chat *c, const char *argument) {
  if (!*argument) {
    fprintf(stderr, "%s\n", c->dialogue.system ? c->dialogue.system : "winnow: there is no system message");
    return CHAT_DONE;
  }
  char *text = strdup(strcmp(argument, "\"\"") ? argument : "");
  if (!text) {
    cli_error("out of memory");
    return CHAT_DONE;
  }
  chat_set_system(c, text);
  chat_rebuild(c);
  cli_note(&c->r->common, "winnow: %s system message%s", *text ? "another" : "no",
           c->turn_count > c->first ? "; the conversation is read again with the next answer" : "");
  return CHAT_DONE;
}

static enum chat_next command_context(struct chat *c, const char *argument) {
  (void)argument;
  chat_print_context(c);
  return CHAT_DONE;
}

static enum chat_next command_stats(struct chat *c, const char *argument) {
  struct chat_kept k;
  (void)argument;
  if (chat_count_kept(c, &k)) return CHAT_DONE;
  char room[64] = "no limit";
  if (!c->endless) snprintf(room, sizeof room, "a context of %" PRId64, c->capacity);
  cli_note(&c->r->common,
           "%" PRId64 " tokens, %s; kept %" PRId64 ", forgot %" PRId64 "; a layer holds %.0f; %" PRId64
           " answers of %" PRId64 " tokens, %.1f tok/s; cache %s",
           k.tokens, room, k.kept, k.tokens - k.kept, k.mean, c->answers, c->tokens,
           c->draw_seconds > 0 ? (double)c->tokens / c->draw_seconds : 0,
           cli_bytes((double)wn_session_kv_bytes(c->session)));
  return CHAT_DONE;
}

/* Pins a turn, the last one without a number, or lets it go. */
static enum chat_next command_pin(struct chat *c, const char *argument) {
  char *end;
  const long number = *argument ? strtol(argument, &end, 10) : (long)c->turn_count;
  if ((*argument && *end) || number <= (long)c->first || number > (long)c->turn_count) {
    cli_error("/pin takes the number of a turn that is still read, %zu to %zu; /turns lists them", c->first + 1,
              c->turn_count);
    return CHAT_DONE;
  }
  struct chat_turn *turn = &c->turns[number - 1];
  turn->pinned = !turn->pinned;
  if (turn->pinned && chat_pin(c)) turn->pinned = false;
  if (!turn->pinned && chat_rebuild(c)) return CHAT_LEAVE; /* a session forgets its pins when it is read again */
  cli_note(&c->r->common, "winnow: turn %ld %s", number,
           turn->pinned ? "stays" : "is not pinned; the conversation is read again with the next answer");
  return CHAT_DONE;
}

static enum chat_next command_turns(struct chat *c, const char *argument) {
  (void)argument;
  chat_print_turns(c);
  return CHAT_DONE;
}

static enum chat_next command_save(struct chat *c, const char *path) {
  if (!*path)
    cli_error("/save needs a file's name");
  else if (!chat_save(c, path))
    cli_note(&c->r->common, "winnow: saved %zu turns in %s", c->turn_count, path);
  return CHAT_DONE;
}

static enum chat_next command_load(struct chat *c, const char *path) {
  if (!*path)
    cli_error("/load needs a file's name");
  else if (!chat_load(c, path))
    cli_note(&c->r->common, "winnow: %zu turns of %s; they are read with the next answer", c->turn_count, path);
  return CHAT_DONE;
}

static enum chat_next command_quit(struct chat *c, const char *argument) {
  (void)c, (void)argument;
  return CHAT_LEAVE;
}

static const struct row {
  const char *name, *argument, *help; /* argument "": the command takes none; help NULL: an alias */
  enum chat_next (*run)(struct chat *c, const char *argument);
} rows[] = {
    {"/help", "", "this list", command_help},
    {"/?", "", NULL, command_help},
    {"/save", "FILE", "write the conversation into a file", command_save},
    {"/load", "FILE", "go on with a saved conversation", command_load},
    {"/system", "TEXT", "another system message; \"\": none; without TEXT it is shown", command_system},
    {"/regen", "", "write the last answer again", command_regen},
    {"/set", "NAME VALUE", "temperature, top-p, tokens, budgets, ...; alone it shows all of them", command_set},
    {"/context", "", "the conversation, what no layer holds any longer struck through", command_context},
    {"/turns", "", "how much of each turn a layer still holds", command_turns},
    {"/pin", "[TURN]", "nothing more of the turn is dropped, else of the last; again: it may be", command_pin},
    {"/stats", "", "tokens, speed and the cache's size", command_stats},
    {"/reset", "", "begin a new conversation", command_reset},
    {"/quit", "", "leave (so does Ctrl-D)", command_quit},
    {"/exit", "", NULL, command_quit},
};
#define ROWS (sizeof rows / sizeof *rows)

static enum chat_next command_help(struct chat *c, const char *argument) {
  (void)c, (void)argument;
  for (size_t i = 0; i < ROWS; i++) {
    char left[32];
    if (!rows[i].help) continue;
    snprintf(left, sizeof left, "%s%s%s", rows[i].name, *rows[i].argument ? " " : "", rows[i].argument);
    fprintf(stderr, "%-18s%s\n", left, rows[i].help);
  }
  fputs("Ctrl-C ends an answer, or drops what was typed. What is pasted is one message; Alt-Enter, or a \\ before "
        "Enter,\n"
        "goes on in the next line.\n",
        stderr);
  return CHAT_DONE;
}

enum chat_next chat_command(struct chat *c, const char *line) {
  const size_t n = strcspn(line, " \t\n");
  if (line[0] != '/') return CHAT_MESSAGE;
  for (size_t i = 0; i < ROWS; i++) {
    if (strlen(rows[i].name) != n || strncmp(rows[i].name, line, n) != 0) continue;
    const char *argument = line + n + strspn(line + n, " \t\n");
    if (*argument && !*rows[i].argument) break;
    return rows[i].run(c, argument);
  }
  if (!c->terminal || strchr(line, '\n')) return CHAT_MESSAGE; /* it is a text that begins with a slash */
  cli_note(&c->r->common, "winnow: no such command; /help lists them");
  return CHAT_DONE;
}

const char *chat_complete(const char *begin) {
  const char *found = NULL;
  for (size_t i = 0; i < ROWS; i++) {
    if (!rows[i].help || strncmp(rows[i].name, begin, strlen(begin)) != 0) continue;
    if (found) return NULL;
    found = rows[i].name;
  }
  return found;
}
