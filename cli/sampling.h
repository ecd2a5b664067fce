/* Options for drawing tokens (sampling) and for chat templates, shared by generate and chat. */
#ifndef CLI_SAMPLING_H
#define CLI_SAMPLING_H

#include <winnow/chat.h>
#include <winnow/generate.h>
#include "args.h"

#define CLI_TOKENIZER_HELP "bytes, a SentencePiece model, a tokenizer.json, a GGUF file or a folder"
#define CLI_TOKENIZER_OPTION(T, m) CLI_OPTION(T, m, "tokenizer", "SPEC", CLI_TOKENIZER_HELP "; else the model's own")

struct cli_sampling {
  double temperature, top_p;
  int64_t top_k;
  uint64_t seed;
  double min_p, repetition_penalty, presence_penalty, frequency_penalty;
  struct cli_list logit_bias; /* "ID=X" */
  wn_logit_bias *biases;      /* [logit_bias.count] parsed by cli_sampling_check */
  int64_t draft;              /* wn_generate_options.draft_tokens */
  struct {                    /* options that were given, so that what the model declares does not hold */
    bool temperature, top_p, top_k, min_p, repetition_penalty;
  } given;
};
void cli_sampling_init(struct cli_sampling *s); /* sets the library's defaults */
/* Sets what the model declares where no option was given, and parses the biases. 0, or the exit code after
 * reporting. */
int cli_sampling_check(const char *command, struct cli_sampling *s, const wn_model *model);
/* Sets the sampling options of a generation; `out` borrows the biases and the draft model (NULL: none). */
void cli_sampling_apply(const struct cli_sampling *s, wn_model *draft, wn_generate_options *out);
void cli_sampling_clear(struct cli_sampling *s);
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_SAMPLING_OPTIONS(T, m)                                                                                     \
  CLI_OPTION(T, m.temperature, "temperature", "X", "0: always the most likely token", .min = 0, .max = 100,            \
             .given = offsetof(T, m.given.temperature)),                                                               \
      CLI_OPTION(T, m.top_k, "top-k", "N", "draw among the N most likely tokens; 0: all", .min = 0, .max = 1 << 30,    \
                 .given = offsetof(T, m.given.top_k)),                                                                 \
      CLI_OPTION(T, m.top_p, "top-p", "X", "draw among the most likely tokens whose probabilities sum to X; 1: all",   \
                 .min = 0, .max = 1, .given = offsetof(T, m.given.top_p)),                                             \
      CLI_OPTION(T, m.min_p, "min-p", "X",                                                                             \
                 "leave out tokens less probable than this part of the most probable one; 0: none", .min = 0,          \
                 .max = 1, .given = offsetof(T, m.given.min_p)),                                                       \
      CLI_OPTION(T, m.repetition_penalty, "repetition-penalty", "X",                                                   \
                 "divide the logits of the prompt's and the written tokens by X; 1: off", .min = 0, .max = 10,         \
                 .given = offsetof(T, m.given.repetition_penalty)),                                                    \
      CLI_OPTION(T, m.presence_penalty, "presence-penalty", "X", "take X from the logits of tokens that were written", \
                 .min = -10, .max = 10),                                                                               \
      CLI_OPTION(T, m.frequency_penalty, "frequency-penalty", "X", "take X from them as often as they were written",   \
                 .min = -10, .max = 10),                                                                               \
      CLI_OPTION(T, m.logit_bias, "logit-bias", "ID=X", "add X to the logit of token ID; -inf: never draw it"),        \
      CLI_OPTION(T, m.seed, "seed", "N", "seed of the sampling; the same seed gives the same text")
/* NOLINTEND(bugprone-macro-parentheses) */
#define CLI_DRAFT_OPTION(T, m)                                                                                         \
  CLI_OPTION(T, m, "draft", "N",                                                                                       \
             "guess up to N tokens from what followed earlier in the text and check them together: the same text, "    \
             "faster where it repeats itself; 0: none",                                                                \
             .min = 0, .max = WN_DRAFT_MAX)
#define CLI_DRAFT_MODEL_OPTION(T, m)                                                                                   \
  CLI_OPTION(T, m, "draft-model", "MODEL",                                                                             \
             "a smaller model with the same vocabulary, which guesses the tokens of --draft (else 3) where nothing "   \
             "earlier in the text does")
enum { CLI_DRAFT_BY_MODEL = 3 };
#define CLI_SAMPLING_EPILOG "Sampling that a model declares (winnow info) comes before the defaults of these options."
#define CLI_STOP_OPTION(T, m) CLI_OPTION(T, m, "stop", "TEXT", "ends the text where TEXT would be written")

/* A growing list of tokens; {0} is an empty one. */
struct cli_ids {
  int32_t *data; /* [count], freed with free() */
  size_t count, room;
};
int cli_ids_add(struct cli_ids *ids, const int32_t *more, size_t count); /* 0, or the exit code after reporting */

struct cli_dialogue {
  const char *system, *name; /* NULL: the model's own */
};
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_DIALOGUE_OPTIONS(T, m)                                                                                     \
  CLI_OPTION(T, m.system, "system", "TEXT",                                                                            \
             "the system message; \"\": none; else the template's default, if it has one"),                            \
      CLI_OPTION(T, m.name, "template", "NAME", "a chat template in place of the model's own",                         \
                 .choices = "chatml|llama3|llama3.1|llama2|mistral|mistral-v3|mistral-tekken|zephyr|tulu|phi3|gemma")
/* NOLINTEND(bugprone-macro-parentheses) */
struct cli_dialogue_choice {
  const wn_chat_template *chat;
  const char *system; /* NULL: none */
  char *owned;
};
/* Chooses template and system message. 0, or the exit code after reporting that the model has no template, or one that
 * cannot be read. */
int cli_dialogue_choose(wn_context *ctx, const struct cli_dialogue *given, const char *model, const wn_tokenizer *tok,
                        struct cli_dialogue_choice *out);
void cli_dialogue_clear(struct cli_dialogue_choice *choice);

#endif
