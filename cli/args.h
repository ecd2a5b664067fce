/* Command lines by table: one row per long option gives parsing, range check, default, help and refusal of what
 * is not known. `--name value`, `--name=value`, `--flag`; `--` ends the options. */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cli_type {
  CLI_FLAG,   /* bool *: set true */
  CLI_STRING, /* const char **: borrowed from argv */
  CLI_INT,    /* int64_t * */
  CLI_UINT,   /* uint64_t * */
  CLI_DOUBLE, /* double * */
  CLI_LIST    /* struct cli_list *: repeatable; freed with cli_list_clear */
};

struct cli_list {
  const char **items; /* [count], borrowed from argv */
  int count;
};
void cli_list_clear(struct cli_list *list);

struct cli_option {
  const char *name; /* without the dashes */
  enum cli_type type;
  void *out;           /* holds the default already */
  const char *metavar; /* "FILE"; NULL for flags */
  const char *help;    /* one line; the default is appended from *out */
  bool required;
  double min, max;     /* numbers: inclusive; both 0: any */
  const char *choices; /* strings: "a|b|c", or NULL for anything */
};

/* What every command takes. */
struct cli_common {
  int64_t threads;
  const char *backend;
  bool json, quiet, verbose;
};
/* clang-format off */
#define CLI_COMMON_OPTIONS(c)                                                                                     \
  {.name = "threads", .type = CLI_INT, .out = &(c)->threads, .metavar = "N", .min = 0, .max = 1024,               \
   .help = "threads; 0: the CPUs this process may run on, at most OMP_NUM_THREADS"},                                                      \
  {.name = "backend", .type = CLI_STRING, .out = &(c)->backend, .metavar = "NAME", .choices = "cpu|ref",          \
   .help = "cpu: fast; ref: plain C in double accumulation"},                                                    \
  {.name = "json", .type = CLI_FLAG, .out = &(c)->json, .help = "the result as JSON on standard output"},         \
  {.name = "quiet", .type = CLI_FLAG, .out = &(c)->quiet, .help = "no progress and no notes"},                    \
  {.name = "verbose", .type = CLI_FLAG, .out = &(c)->verbose, .help = "the library's log on standard error"}
/* clang-format on */
#define CLI_COMMON_DEFAULTS                                                                                            \
  { .threads = 0, .backend = "cpu" }

struct cli_spec {
  const char *command; /* "winnow train" */
  const char *summary; /* one or two sentences */
  const struct cli_option *options;
  int option_count;
  const char *positional; /* "FILE...", or NULL when none are taken */
  int positional_min, positional_max;
  const char *epilog;       /* after the options in --help; may be NULL */
  char *(*more_help)(void); /* text appended to --help, freed with free(); may be NULL */
};
#define CLI_COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* What cli_parse returns besides an exit code. */
enum {
  CLI_GO = 0,     /* everything is in place: run */
  CLI_SHOWN = 256 /* --help was printed; main makes it exit code 0 */
};

/* Fills the rows' variables. Returns CLI_GO, CLI_SHOWN, or 2 after a usage error (already reported in one line).
 * positionals may be NULL when spec->positional is. */
int cli_parse(const struct cli_spec *spec, int argc, char **argv, struct cli_list *positionals);

/* Commands and sub-subcommands ("winnow tokenizer train") by table. run gets its own name as argv[0]. */
struct cli_command {
  const char *name, *help;
  int (*run)(int argc, char **argv);
};
int cli_dispatch(const char *parent, const char *summary, const struct cli_command *commands, int count, int argc,
                 char **argv);

/* The candidate nearest to `word` by edit distance; NULL when none is near. */
const char *cli_nearest(const char *word, const char *const *candidates, int count);

#endif
