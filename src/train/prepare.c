/* A recipe may leave vocabulary and context to the data. The vocabulary comes from the first of these that gives one:
 * the recipe, the tokenizer, data.json in the folder of the training tokens, the synthetic task. If several give one,
 * they must agree. */
#include "train/prepare.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "base/fields.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/open.h"
#include "data/inputs.h"
#include "io/folder.h"
#include "train/adapt.h"
#include "model/model.h"

enum { PATH_BYTES = 4096 };

/* "vocab_size" of the data.json in the token file's folder; 0 when there is none. */
static wn_status data_vocabulary(wn_context *ctx, const char *token_file, char path[PATH_BYTES], int64_t *out) {
  *out = 0;
  char beside[PATH_BYTES];
  const char *slash = strrchr(token_file, '/');
  size_t dir = slash ? (size_t)(slash - token_file) + 1 : 0;
  if (dir + sizeof "data.json" > PATH_BYTES) return WN_OK;
  memcpy(beside, token_file, dir);
  memcpy(beside + dir, "data.json", sizeof "data.json");
  WN_TRY(wn_folder_path(ctx, path, PATH_BYTES, beside));
  if (!wn_path_exists(path)) return WN_OK;
  json_t *json = NULL;
  WN_TRY(wn_json_load_file(ctx, WN_JSON_TABLE, path, &json));
  const json_t *value = json_object_get(json, "vocab_size");
  if (json_is_integer(value)) *out = json_integer_value(value);
  json_decref(json);
  if (*out < 1 || *out > WN_LIMIT_VOCABULARY)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"vocab_size\" is missing or not a number from 1 to %d", path,
                   WN_LIMIT_VOCABULARY);
  return WN_OK;
}

/* Reports a missing token file as such, and not as one that lacks a data.json. */
static wn_status data_is_there(wn_context *ctx, const char *token_file) {
  struct wn_inputs files;
  int fd;
  uintmax_t bytes;
  wn_status status = wn_inputs_match(ctx, token_file, &files);
  if (status == WN_OK) status = wn_open_file(ctx, files.paths[0], &fd, &bytes);
  if (status == WN_OK) close(fd);
  wn_inputs_clear(&files);
  return status;
}

/* Checks that two vocabularies agree. more: how many entries the model must have beyond theirs. */
static wn_status agree(wn_context *ctx, const char *who, int64_t theirs, int64_t more, int64_t ours) {
  if (more ? theirs + more <= ours : theirs == ours) return WN_OK;
  if (more)
    return wn_fail(ctx, WN_ERR_SHAPE,
                   "%s has a vocabulary of %lld, which with %lld sentinels is more than the model's %lld", who,
                   (long long)theirs, (long long)more, (long long)ours);
  return wn_fail(ctx, WN_ERR_SHAPE,
                 "%s has a vocabulary of %lld, the model of %lld; data are made with the model's tokenizer", who,
                 (long long)theirs, (long long)ours);
}

wn_status wn_run_prepare(wn_context *ctx, wn_recipe *recipe, const char *tokenizer_from, wn_tokenizer **tok) {
  wn_status status;
  wn_model_config *model = &recipe->model;
  int64_t data_vocab = 0, task_vocab = 0, task_context = 0;
  char data_json[PATH_BYTES] = "";
  *tok = NULL;
  if (tokenizer_from && tokenizer_from[0]) WN_TRY(wn_tokenizer_load(ctx, tokenizer_from, tok));

  const int64_t sentinels = recipe->data.kind == WN_DATA_SPAN_CORRUPTION ? recipe->data.sentinels : 0;
  if (recipe->data.kind == WN_DATA_TOKENS || sentinels > 0) {
    if (!recipe->data.train[0]) {
      status = wn_fail(ctx, WN_ERR_CONFIG, "data.train is empty: it names the token file to train on");
      goto failed;
    }
    WN_TRY_GOTO(data_is_there(ctx, recipe->data.train), failed);
    WN_TRY_GOTO(data_vocabulary(ctx, recipe->data.train, data_json, &data_vocab), failed);
  } else {
    wn_data_config_requirements(&recipe->data, &task_vocab, &task_context);
  }
  if (model->vocab_size == 0)
    model->vocab_size = *tok         ? wn_tokenizer_vocab_size(*tok) + sentinels
                        : data_vocab ? data_vocab + sentinels
                                     : task_vocab;
  if (model->vocab_size == 0) {
    status = wn_fail(ctx, WN_ERR_CONFIG,
                     "model.vocab_size is 0, and there is neither data.tokenizer nor a data.json in the folder of %s "
                     "to take it from",
                     recipe->data.train);
    goto failed;
  }
  if (*tok)
    WN_TRY_GOTO(agree(ctx, tokenizer_from, wn_tokenizer_vocab_size(*tok), sentinels, model->vocab_size), failed);
  if (data_vocab) WN_TRY_GOTO(agree(ctx, data_json, data_vocab, sentinels, model->vocab_size), failed);
  if (task_vocab > model->vocab_size) {
    status = wn_fail(ctx, WN_ERR_SHAPE, "the task needs a vocabulary of %lld, model.vocab_size is %lld",
                     (long long)task_vocab, (long long)model->vocab_size);
    goto failed;
  }
  if (model->context == 0 && task_context) model->context = task_context;
  if (task_context && recipe->train.context == 0) recipe->train.context = task_context;
  if (task_context > recipe->train.context || task_context > model->context) {
    status =
        wn_fail(ctx, WN_ERR_CONFIG, "the task needs a context of %lld, model.context is %lld and train.context %lld",
                (long long)task_context, (long long)model->context, (long long)recipe->train.context);
    goto failed;
  }
  WN_TRY_GOTO(wn_model_config_resolve(ctx, model), failed);
  if (recipe->train.context == 0) recipe->train.context = model->context;
  return WN_OK;
failed:
  wn_tokenizer_destroy(*tok);
  *tok = NULL;
  return status;
}

wn_status wn_run_take_parameters(wn_context *ctx, const char *from, struct wn_model *model) {
  wn_model *given;
  WN_TRY(wn_model_load(ctx, from, WN_OPTIONS(wn_model_load_options, .as_float = true), &given));
  const wn_status status = wn_adapt_start(ctx, from, given, NULL, model);
  wn_model_destroy(given);
  return status;
}
