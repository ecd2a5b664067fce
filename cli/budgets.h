/* Options for budgets of the key-value cache, for commands that decode. */
#ifndef CLI_BUDGETS_H
#define CLI_BUDGETS_H

#include <winnow/model.h>
#include "args.h"

/* The names of all policies, "selective|h2o|...", and help lines of options. cli_policies_init fills them before any
 * command's options are read. */
extern char cli_policies[], cli_policies_help[], cli_policy_options_help[];
extern char cli_policy_names[]; /* for --policy: those, and the combinations of wn_budgets_named */
void cli_policies_init(void);
/* Finds the policy by a name of `bytes` bytes. False: there is none. */
bool cli_policy_named(const char *name, size_t bytes, wn_policy *out);
/* Sets the policy, or the combination, of a name that --policy accepts. */
void cli_policy_set(const char *name, wn_budgets *out);
/* Parses --policies: names with commas, each at most once. others: what may be given instead ("all, or "). CLI_GO, or 2
 * after reporting. */
int cli_policies_read(const char *command, const char *text, const char *others, wn_policy list[WN_POLICY_MAX],
                      int *count);
/* Lists every policy that suits the model with these choices (budgets without tokens); returns their number. Prints a
 * note about policies that would suit it without the choices. */
int cli_policies_suited(wn_context *ctx, const struct cli_common *common, const wn_model *model,
                        const wn_budgets *choices, wn_policy list[WN_POLICY_MAX]);

/* Options of single policies. */
struct cli_policy_choices {
  int64_t sinks;
  double recent;
  uint64_t seed;
  bool per_kv_head;
  bool sinks_given, recent_given, seed_given; /* options that are not given do not override a file */
  const char *when;                           /* NULL: not given */
  int64_t every;
  bool every_given;
  const char *options; /* options of any policy, "key=value,..."; NULL: none */
};
#define CLI_POLICY_CHOICES_DEFAULTS                                                                                    \
  { .sinks = 4, .recent = 0.5 }
/* Sets the options in `budgets`. CLI_GO, or 2 after reporting which is wrong. */
int cli_policy_choices_apply(const char *command, const struct cli_policy_choices *choices, wn_budgets *budgets);
/* The same, but only for options that were given, over those of a file. */
int cli_policy_choices_over(const char *command, const struct cli_policy_choices *choices, wn_budgets *budgets);

/* The given options as "KEY=VALUE,..."; false: none was given. */
bool cli_policy_choices_text(const struct cli_policy_choices *choices, char *out, size_t bytes);

struct cli_budgets {
  const char *spec, *policy; /* NULL: not given */
  struct cli_policy_choices choices;
  bool cache_positions;
  const char *cache; /* for CLI_CACHE_OPTION */
};
#define CLI_BUDGETS_DEFAULTS                                                                                           \
  { .choices = CLI_POLICY_CHOICES_DEFAULTS, .cache = "auto" }
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_POLICY_CHOICES_OPTIONS(T, m)                                                                               \
  CLI_OPTION(T, m.sinks, "sinks", "N", "streaming: first tokens that are never evicted", .min = 0, .max = 1 << 20,     \
             .given = offsetof(T, m.sinks_given)),                                                                     \
      CLI_OPTION(T, m.recent, "recent", "PART", "h2o: the part of a budget for the most recent tokens", .min = 0,      \
                 .max = 1, .given = offsetof(T, m.recent_given)),                                                      \
      CLI_OPTION(T, m.seed, "random-seed", "N", "random: the seed", .given = offsetof(T, m.seed_given)),               \
      CLI_OPTION(T, m.per_kv_head, "per-kv-head", NULL,                                                                \
                 "each key-value head evicts on its own, where the policy decides for each"),                          \
      CLI_OPTION(T, m.when, "when", "WHEN",                                                                            \
                 "always: a token goes for each that comes; prompt: all at once where the context ends, then the "     \
                 "cache grows; hold: the same, then always; every: each time --every tokens more are held",            \
                 .choices = "always|prompt|hold|every"),                                                               \
      CLI_OPTION(T, m.every, "every", "N", "when every: tokens beyond the budget that may be held", .min = 1,          \
                 .max = 1 << 30, .given = offsetof(T, m.every_given)),                                                 \
      CLI_OPTION(T, m.options, "policy-options", "KEY=VALUE,...", cli_policy_options_help)
#define CLI_BUDGETS_OPTIONS(T, m)                                                                                      \
  CLI_OPTION(                                                                                                          \
      T, m.spec, "budgets", "SPEC",                                                                                    \
      "tokens that a layer holds: 64; 64,32,...; by key-value head 64:16,...; 0.25 of the context; 25% of the tokens " \
      "read, with --when; tau=0.69: what scores at most that, with --when; 2MiB in all; or a budgets.json"),           \
      CLI_OPTION(T, m.policy, "policy", "NAME", "the eviction policy; else the file's, or selective",                  \
                 .choices = cli_policy_names),                                                                         \
      CLI_POLICY_CHOICES_OPTIONS(T, m.choices),                                                                        \
      CLI_OPTION(T, m.cache_positions, "cache-positions", NULL, "streaming: a token's position is its cache position")
#define CLI_CACHE_OPTION(T, m)                                                                                         \
  CLI_OPTION(T, m.cache, "cache", "FORMAT",                                                                            \
             "number format of keys and values; auto: half floats, with half the bytes, where the model's file has "   \
             "16 bits per weight or fewer; q8_0: in 8 bits; q4_0: keys in 8 bits, values in 4",                        \
             .choices = "auto|float|half|q8_0|q4_0")
#define CLI_PIN_OPTION(T, m)                                                                                           \
  CLI_OPTION(T, m, "pin", "WHAT", "system: the system message stays whole under --budgets, whatever the policy",       \
             .choices = "none|system")
/* NOLINTEND(bugprone-macro-parentheses) */

/* Checks that the options make sense together: CLI_GO or 2. */
int cli_budgets_check(const char *command, const struct cli_budgets *given);
/* Loads the budgets; layers is 0 without --budgets. out->cache is the resolved format in either case. 0, or the exit
 * code after reporting. Clear the result with wn_budgets_clear. */
int cli_budgets_load(wn_context *ctx, const struct cli_budgets *given, const wn_model *model, wn_budgets *out);

#endif
