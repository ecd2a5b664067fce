#include "args.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ui.h"

void cli_list_clear(struct cli_list *list) {
  free(list->items);
  list->items = NULL;
  list->count = 0;
}

static bool args_list_add(struct cli_list *list, const char *item) {
  const char **items = realloc(list->items, ((size_t)list->count + 1) * sizeof *items);
  if (!items) return false;
  items[list->count++] = item;
  list->items = items;
  return true;
}

/* Levenshtein distance of words of at most 63 letters. */
static int args_distance(const char *a, const char *b) {
  size_t n = strlen(a), m = strlen(b);
  if (n > 63 || m > 63) return 64;
  int row[64];
  for (size_t j = 0; j <= m; j++) row[j] = (int)j;
  for (size_t i = 1; i <= n; i++) {
    int diagonal = row[0];
    row[0] = (int)i;
    for (size_t j = 1; j <= m; j++) {
      int best = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      row[j] = best;
    }
  }
  return row[m];
}

const char *cli_nearest(const char *word, const char *const *candidates, int count) {
  const char *best = NULL;
  int best_distance = (int)strlen(word) / 2 + 1;
  for (int i = 0; i < count; i++) {
    int d = args_distance(word, candidates[i]);
    if (d < best_distance) {
      best_distance = d;
      best = candidates[i];
    }
  }
  return best;
}

enum { HELP_COLUMN = 28, HELP_WIDTH = 110 };

/* Prints a text from column HELP_COLUMN on, in lines of at most HELP_WIDTH; a word that is longer stays whole. */
static void args_print_wrapped(const char *text) {
  int column = HELP_COLUMN;
  for (const char *word = text; *word;) {
    size_t n = strcspn(word, " "), part = HELP_WIDTH - HELP_COLUMN; /* a long list of choices goes on after a "|" */
    while (n > part && part > 0 && word[part - 1] != '|') part--;
    if (n > part && part > 0) n = part;
    if (column > HELP_COLUMN && column + 1 + (int)n > HELP_WIDTH) {
      printf("\n%*s", HELP_COLUMN, "");
      column = HELP_COLUMN;
    }
    column += printf("%s%.*s", column > HELP_COLUMN ? " " : "", (int)n, word);
    word += n + strspn(word + n, " ");
  }
  putchar('\n');
}

void cli_option_value(const struct cli_option *o, const void *from, char *out, size_t bytes) {
  const void *at = (const char *)from + o->at;
  const char *text = o->type == CLI_STRING ? *(const char *const *)at : NULL;
  *out = 0;
  switch (o->type) {
  case CLI_FLAG:
    snprintf(out, bytes, "%s", *(const bool *)at ? "on" : "off");
    break;
  case CLI_STRING:
    snprintf(out, bytes, "%s", text ? text : "");
    break;
  case CLI_INT:
    snprintf(out, bytes, "%" PRId64, *(const int64_t *)at);
    break;
  case CLI_UINT:
    snprintf(out, bytes, "%" PRIu64, *(const uint64_t *)at);
    break;
  case CLI_DOUBLE:
    snprintf(out, bytes, "%g", *(const double *)at);
    break;
  case CLI_LIST:
    for (int i = 0; i < ((const struct cli_list *)at)->count; i++) {
      const size_t n = strlen(out);
      snprintf(out + n, bytes - n, "%s%s", n ? " " : "", ((const struct cli_list *)at)->items[i]);
    }
    break;
  }
}

static void args_print_option(const struct cli_option *o, const void *from) {
  char left[80], shown[64], value[72] = "", text[2048];
  snprintf(left, sizeof left, "--%s%s%s", o->name, o->metavar ? " " : "", o->metavar ? o->metavar : "");
  cli_option_value(o, from, shown, sizeof shown);
  if (o->type == CLI_LIST)
    snprintf(value, sizeof value, "; repeatable");
  else if (o->type != CLI_FLAG &&
           (*shown || (o->type == CLI_STRING && *(const char *const *)((const char *)from + o->at))))
    snprintf(value, sizeof value, " [%s]", shown);
  snprintf(text, sizeof text, "%s%s%s%s%s%s", o->help, o->choices ? " (" : "", o->choices ? o->choices : "",
           o->choices ? ")" : "", o->required ? "; required" : "", value);
  printf("  %-*s", HELP_COLUMN - 2, left);
  if ((int)strlen(left) > HELP_COLUMN - 3) printf("\n%*s", HELP_COLUMN, "");
  args_print_wrapped(text);
}

static void args_print_help(const struct cli_spec *spec, const void *from) {
  printf("%s [OPTIONS]%s%s\n\n%s\n\nOptions:\n", spec->command, spec->positional ? " " : "",
         spec->positional ? spec->positional : "", spec->summary);
  for (int i = 0; i < spec->option_count; i++) args_print_option(&spec->options[i], from);
  printf("  %-26s%s\n", "--help", "this text");
  if (spec->epilog) printf("\n%s\n", spec->epilog);
  if (spec->more_help) {
    char *text = spec->more_help();
    if (text) printf("\n%s", text);
    free(text);
  }
}

static bool args_is_choice(const char *choices, const char *value) {
  size_t n = strlen(value);
  for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
    if (!strncmp(p, value, n) && (p[n] == '|' || !p[n])) return true;
  return false;
}

static int args_store(const struct cli_spec *spec, const struct cli_option *o, const char *value, void *into) {
  void *out = (char *)into + o->at;
  char *end = NULL;
  bool bounded = o->min != 0 || o->max != 0;
  double number = 0;
  errno = 0;
  if (o->given) *(bool *)((char *)into + o->given) = true;
  switch (o->type) {
  case CLI_FLAG:
    *(bool *)out = true;
    return CLI_GO;
  case CLI_STRING:
    if (o->choices && !args_is_choice(o->choices, value))
      return cli_usage_error(spec->command, "--%s: \"%s\" is not one of %s", o->name, value, o->choices);
    *(const char **)out = value;
    return CLI_GO;
  case CLI_LIST:
    if (!args_list_add(out, value)) return cli_error("out of memory");
    return CLI_GO;
  case CLI_INT: {
    long long x = strtoll(value, &end, 10);
    if (end == value || *end || errno)
      return cli_usage_error(spec->command, "--%s: \"%s\" is not an integer", o->name, value);
    number = (double)x;
    *(int64_t *)out = x;
    break;
  }
  case CLI_UINT: {
    unsigned long long x = strtoull(value, &end, 10);
    if (end == value || *end || errno || strchr(value, '-'))
      return cli_usage_error(spec->command, "--%s: \"%s\" is not an integer of at least 0", o->name, value);
    number = (double)x;
    *(uint64_t *)out = x;
    break;
  }
  case CLI_DOUBLE:
    number = strtod(value, &end);
    if (end == value || *end || !isfinite(number))
      return cli_usage_error(spec->command, "--%s: \"%s\" is not a number", o->name, value);
    *(double *)out = number;
    break;
  }
  if (bounded && (number < o->min || number > o->max))
    return cli_usage_error(spec->command, "--%s: %s is out of range %.10g..%.10g", o->name, value, o->min, o->max);
  return CLI_GO;
}

int cli_option_set(const struct cli_spec *spec, const struct cli_option *o, const char *value, void *into) {
  if (o->type != CLI_FLAG) return args_store(spec, o, value, into);
  const bool on = !strcmp(value, "on");
  if (!on && strcmp(value, "off") != 0)
    return cli_usage_error(spec->command, "--%s: \"%s\" is not on or off", o->name, value);
  *(bool *)((char *)into + o->at) = on;
  return CLI_GO;
}

static int args_unknown_option(const struct cli_spec *spec, const char *name) {
  const char *names[128];
  int n = 0;
  for (int i = 0; i < spec->option_count && n < 127; i++) names[n++] = spec->options[i].name;
  names[n++] = "help";
  const char *near = cli_nearest(name, names, n);
  if (near) return cli_usage_error(spec->command, "unknown option --%s; did you mean --%s?", name, near);
  return cli_usage_error(spec->command, "unknown option --%s", name);
}

int cli_parse(const struct cli_spec *spec, int argc, char **argv, void *into, struct cli_list *positionals) {
  bool seen[128] = {false};
  bool options_end = false;
  for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
    if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
      args_print_help(spec, into);
      return CLI_SHOWN;
    }
  for (int i = 1; i < argc; i++) {
    const char *word = argv[i];
    if (options_end || word[0] != '-' || !strcmp(word, "-")) {
      if (!spec->positional || !positionals) return cli_usage_error(spec->command, "unexpected argument \"%s\"", word);
      if (!args_list_add(positionals, word)) return cli_error("out of memory");
      continue;
    }
    if (!strcmp(word, "--")) {
      options_end = true;
      continue;
    }
    if (word[1] != '-') return cli_usage_error(spec->command, "unknown option %s; options are long: --name", word);
    char name[64];
    const char *equals = strchr(word + 2, '=');
    size_t length = equals ? (size_t)(equals - word - 2) : strlen(word + 2);
    if (length >= sizeof name) return cli_usage_error(spec->command, "unknown option %s", word);
    memcpy(name, word + 2, length);
    name[length] = 0;
    int row = 0;
    while (row < spec->option_count && strcmp(spec->options[row].name, name)) row++;
    if (row == spec->option_count) return args_unknown_option(spec, name);
    const struct cli_option *o = &spec->options[row];
    const char *value = NULL;
    if (o->type == CLI_FLAG) {
      if (equals) return cli_usage_error(spec->command, "--%s takes no value", name);
    } else if (equals) {
      value = equals + 1;
    } else {
      if (i + 1 >= argc) return cli_usage_error(spec->command, "--%s needs a value", name);
      value = argv[++i];
    }
    if (seen[row] && o->type != CLI_LIST && o->type != CLI_FLAG)
      return cli_usage_error(spec->command, "--%s is given twice", name);
    seen[row] = true;
    int code = args_store(spec, o, value, into);
    if (code != CLI_GO) return code;
  }
  for (int i = 0; i < spec->option_count; i++)
    if (spec->options[i].required && !seen[i])
      return cli_usage_error(spec->command, "--%s is required", spec->options[i].name);
  if (spec->positional && positionals) {
    if (positionals->count < spec->positional_min)
      return cli_usage_error(spec->command, "%s is missing", spec->positional);
    if (positionals->count > spec->positional_max && spec->positional_max > 2)
      return cli_usage_error(spec->command, "%d of %s, expected at most %d", positionals->count, spec->positional,
                             spec->positional_max);
    if (positionals->count > spec->positional_max)
      return cli_usage_error(spec->command, "unexpected argument \"%s\"", positionals->items[spec->positional_max]);
  }
  return CLI_GO;
}

int cli_number_list(const char *command, const char *option, const char *text, const char *what, int64_t most,
                    int64_t *list, int max, int *count) {
  *count = 0;
  for (const char *at = text;; at++) {
    char *end;
    errno = 0;
    const long long n = strtoll(at, &end, 10);
    if (end == at || errno || n < 1 || (*end && *end != ','))
      return cli_usage_error(command, "--%s: \"%s\" is not a list of %s, such as 16,32,64", option, text, what);
    if (n > most)
      return cli_usage_error(command, "--%s: %lld is more than %" PRId64 ", the most that is possible", option, n,
                             most);
    if (*count == max) return cli_usage_error(command, "--%s: at most %d of them", option, max);
    list[(*count)++] = n;
    at = end;
    if (!*at) return CLI_GO;
  }
}

int cli_dispatch(const char *parent, const char *summary, const struct cli_command *commands, int count, int argc,
                 char **argv) {
  const char *word = argc > 1 ? argv[1] : NULL;
  /* "help train" is "train --help", at every depth. */
  if (word && !strcmp(word, "help") && argc > 2)
    for (int i = 0; i < count; i++) {
      char *turned[] = {argv[2], argc > 3 ? "help" : "--help", argc > 3 ? argv[3] : NULL, NULL};
      if (!strcmp(argv[2], commands[i].name)) return commands[i].run(argc > 3 ? 3 : 2, turned);
    }
  /* "help X" for an unknown command X is refused like X itself. */
  if (word && !strcmp(word, "help") && argc > 2 && argv[2][0] != '-') word = argv[2];
  if (!word || (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help"))) {
    printf("%s COMMAND [OPTIONS]\n\n%s\n\nCommands:\n", parent, summary);
    for (int i = 0; i < count; i++) printf("  %-12s%s\n", commands[i].name, commands[i].help);
    printf("\n%s COMMAND --help describes a command.\n", parent);
    return 0;
  }
  for (int i = 0; i < count; i++)
    if (!strcmp(word, commands[i].name)) return commands[i].run(argc - 1, argv + 1);
  const char *names[64];
  int n = 0;
  for (int i = 0; i < count && n < 64; i++) names[n++] = commands[i].name;
  const char *near = cli_nearest(word, names, n);
  const char *what = word[0] == '-' ? "option" : "command";
  if (near) return cli_usage_error(parent, "unknown %s \"%s\"; did you mean \"%s\"?", what, word, near);
  return cli_usage_error(parent, "unknown %s \"%s\"", what, word);
}
