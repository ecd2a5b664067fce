/* Command lines by table. One static row per long option serves for parsing, range checks and help; unknown options are
 * refused. A row points to a field of the command's struct of options, which cli_parse gets with the defaults in it.
 * Forms: `--name value`, `--name=value`, `--flag`; `--` ends the options. */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cli_type {
  CLI_FLAG,   /* bool: set true */
  CLI_STRING, /* const char *: borrowed from argv */
  CLI_INT,    /* int64_t */
  CLI_UINT,   /* uint64_t */
  CLI_DOUBLE, /* double */
  CLI_LIST    /* struct cli_list: repeatable; freed with cli_list_clear */
};

struct cli_list {
  const char **items; /* [count], borrowed from argv */
  int count;
};
void cli_list_clear(struct cli_list *list);

struct cli_option {
  const char *name; /* without the dashes */
  enum cli_type type;
  size_t at;           /* offset of the field in the command's struct, which holds the default */
  const char *metavar; /* "FILE"; NULL for flags */
  const char *help;    /* one line; the default is appended */
  bool required;
  double min, max;     /* numbers: inclusive range; both 0: any */
  const char *choices; /* strings: "a|b|c", or NULL for anything */
  size_t given; /* offset of a bool that becomes true if the option is given, even with its default value; 0: none */
};
/* A row for a field of struct T. The field's type decides what the option takes. Then .required, .min, .max, .choices,
 * .given as needed. */
#define CLI_OPTION(T, field, option, meta, text, ...)                                                                  \
  {                                                                                                                    \
    .name = option, .type = CLI_TYPE(((T *)0)->field), .at = offsetof(T, field), .metavar = meta, .help = text,        \
    __VA_ARGS__                                                                                                        \
  }
#define CLI_TYPE(x)                                                                                                    \
  _Generic((x), bool: CLI_FLAG, const char *: CLI_STRING, int64_t: CLI_INT, uint64_t: CLI_UINT, double: CLI_DOUBLE,    \
           struct cli_list: CLI_LIST)

/* Options of every command. */
struct cli_common {
  int64_t threads, exact_rows;
  const char *backend, *pre;
  bool json, quiet, verbose;
};
#define CLI_BACKEND_NAME(name) #name
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_COMMON_OPTIONS(T, m)                                                                                       \
  CLI_OPTION(T, m.threads, "threads", "N", "threads; 0: the CPUs this process may run on, at most OMP_NUM_THREADS",    \
             .min = 0, .max = 1024),                                                                                   \
      CLI_OPTION(T, m.backend, "backend", "NAME", "cpu: fast; ref: plain C in double accumulation; cuda: a GPU",       \
                 .choices = WN_BACKENDS(CLI_BACKEND_NAME, "|")),                                                       \
      CLI_OPTION(T, m.exact_rows, "exact-rows", "N",                                                                   \
                 "from N rows on, products with quantised weights do not round activations; 1: never; 0: as the "      \
                 "backend chooses",                                                                                    \
                 .min = 0, .max = 1e9),                                                                                \
      CLI_OPTION(                                                                                                      \
          T, m.pre, "pre", "NAME",                                                                                     \
          "how the byte-pair tokenizer of a GGUF file that does not say it splits texts: llama-bpe, qwen2, ..."),      \
      CLI_OPTION(T, m.json, "json", NULL, "the result as JSON on standard output"),                                    \
      CLI_OPTION(T, m.quiet, "quiet", NULL, "no progress, no messages but errors and warnings"),                       \
      CLI_OPTION(T, m.verbose, "verbose", NULL, "the library's log on standard error")
/* NOLINTEND(bugprone-macro-parentheses) */
#define CLI_COMMON_DEFAULTS                                                                                            \
  { .threads = 0, .backend = "cpu" }

struct cli_spec {
  const char *command; /* "winnow train" */
  const char *summary; /* one or two sentences */
  const struct cli_option *options;
  int option_count;
  const char *positional; /* "FILE...", or NULL if the command takes none */
  int positional_min, positional_max;
  const char *epilog;       /* after the options in --help; may be NULL */
  char *(*more_help)(void); /* text appended to --help, freed with free(); may be NULL */
};
#define CLI_COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define CLI_TABLE(rows) .options = (rows), .option_count = CLI_COUNT(rows)
#define CLI_OPTIONAL(name) .positional = (name), .positional_max = 1

/* What cli_parse returns instead of an exit code. */
enum {
  CLI_GO = 0,     /* go on and run */
  CLI_SHOWN = 256 /* --help was printed; main makes it exit code 0 */
};

/* Fills the fields of `into`, the struct of the rows. Returns CLI_GO, CLI_SHOWN, or 2 after a usage error (already
 * reported in one line). positionals may be NULL when spec->positional is. */
int cli_parse(const struct cli_spec *spec, int argc, char **argv, void *into, struct cli_list *positionals);

/* cli_option_set sets a row's field from a text as the command line does (a flag: "on" or "off"); CLI_GO, or 2 after
 * reporting. cli_option_value gives the field as a text, "" for a string that is NULL. */
int cli_option_set(const struct cli_spec *spec, const struct cli_option *o, const char *value, void *into);
void cli_option_value(const struct cli_option *o, const void *from, char *out, size_t bytes);

/* Parses an option such as 16,32,64: numbers from 1 to `most`, at most `max` of them, into `list`. CLI_GO, or 2 after
 * reporting. what: names the numbers in messages, "budgets". */
int cli_number_list(const char *command, const char *option, const char *text, const char *what, int64_t most,
                    int64_t *list, int max, int *count);

/* Commands and their subcommands ("winnow tokenizer train") by table. `run` gets its own name as argv[0]. */
struct cli_command {
  const char *name, *help;
  int (*run)(int argc, char **argv);
};
int cli_dispatch(const char *parent, const char *summary, const struct cli_command *commands, int count, int argc,
                 char **argv);

/* The candidate nearest to `word` by edit distance; NULL when none is near. */
const char *cli_nearest(const char *word, const char *const *candidates, int count);

#endif
