/* Saved conversations: JSON with the messages in the OpenAI API's form and the tokens of the answers, which are used
 * again if the tokenizer still decodes them to the same text.
 *
 *   {"winnow": "chat", "template": "chatml",
 *    "messages": [{"role": "system", "content": "..."}, {"role": "user", "content": "..."},
 *                 {"role": "assistant", "content": "...", "ids": [5, 1, ...]}, ...]} */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "chat.h"
#include "files.h"

#define FILE_LIMIT ((size_t)256 << 20)

/* --- saving --- */

static int file_add(json_t *messages, const char *role, const char *text, json_t **out) {
  json_t *content = json_string(text);
  if (!content) return cli_error("/save: a message is not UTF-8, or memory is short");
  *out = json_pack("{s:s, s:o}", "role", role, "content", content);
  return json_array_append_new(messages, *out) ? cli_error("out of memory") : 0;
}

static int file_add_turn(json_t *messages, const struct chat_turn *t) {
  json_t *message = NULL, *ids;
  if (file_add(messages, "user", t->message, &message)) return 1;
  if (!t->text) return 0; /* not answered */
  if (file_add(messages, "assistant", t->text, &message) || json_object_set_new(message, "ids", ids = json_array()))
    return 1;
  for (size_t i = 0; i < t->answer.count; i++) json_array_append_new(ids, json_integer(t->answer.data[i]));
  return 0;
}

/* A file that is not a saved conversation is not overwritten. */
static int file_may_write(const char *path) {
  struct stat st;
  if (stat(path, &st) != 0) return cli_check_output(path, false);
  json_t *there = S_ISREG(st.st_mode) ? cli_read_json(path) : NULL;
  const char *kind = json_string_value(json_object_get(there, "winnow"));
  const bool ours = kind && !strcmp(kind, "chat");
  json_decref(there);
  return ours ? 0 : cli_error("/save: %s is there and is no saved conversation", path);
}

int chat_save(struct chat *c, const char *path) {
  json_t *messages, *message = NULL;
  if (file_may_write(path)) return 1;
  json_t *root = json_pack("{s:s, s:s, s:o}", "winnow", "chat", "template", wn_chat_template_name(c->dialogue.chat),
                           "messages", messages = json_array());
  int code = root ? 0 : cli_error("out of memory");
  if (!code && c->dialogue.system) code = file_add(messages, "system", c->dialogue.system, &message);
  for (size_t i = 0; !code && i < c->turn_count; i++) code = file_add_turn(messages, &c->turns[i]);
  char *text = code ? NULL : json_dumps(root, JSON_COMPACT);
  if (!code && !text) code = cli_error("out of memory");
  if (!code && wn_file_save(c->ctx, path, text, strlen(text)) != WN_OK) code = cli_fail(c->ctx, WN_ERR_IO);
  free(text);
  json_decref(root);
  return code;
}

/* --- loading --- */

/* Reads the file's tokens, if they decode to the text with this vocabulary. */
static int file_read_ids(const struct chat *c, const json_t *list, const char *text, struct cli_ids *out) {
  const int32_t V = wn_tokenizer_vocab_size(c->in.tok);
  char *decoded = NULL;
  size_t bytes = 0;
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *id = json_array_get(list, i);
    const json_int_t n = json_integer_value(id);
    if (!json_is_integer(id) || n < 0 || n >= V) {
      out->count = 0;
      return 0;
    }
    if (cli_ids_add(out, &(int32_t){(int32_t)n}, 1)) return 1;
  }
  const wn_status status = wn_tokenizer_decode(c->ctx, c->in.tok, out->data, out->count, &decoded, &bytes);
  if (status != WN_OK || strlen(text) != bytes || memcmp(text, decoded, bytes) != 0) out->count = 0;
  wn_text_free(decoded);
  return 0;
}

static int file_read_answer(const struct chat *c, const char *path, size_t at, const json_t *message, const char *text,
                            struct chat_turn *turn) {
  const json_t *list = json_object_get(message, "ids");
  int32_t *ids = NULL;
  size_t n = 0;
  if (!(turn->text = strdup(text))) return cli_error("out of memory");
  if (json_array_size(list) && file_read_ids(c, list, text, &turn->answer)) return 1;
  if (turn->answer.count || !*text) return 0;
  if (wn_tokenizer_encode(c->ctx, c->in.tok, text, strlen(text), false, false, &ids, &n) != WN_OK)
    return cli_error("%s: message %zu: %s", path, at, wn_context_error(c->ctx));
  const int code = cli_ids_add(&turn->answer, ids, n);
  wn_tokens_free(ids);
  return code;
}

/* Reads message `at` of the file into the conversation `out`, which has its own turns and system message. */
static int file_read_message(const struct chat *c, const char *path, size_t at, const json_t *message,
                             struct chat *out) {
  const char *role = json_string_value(json_object_get(message, "role")),
             *text = json_string_value(json_object_get(message, "content"));
  struct chat_turn *last = out->turn_count ? &out->turns[out->turn_count - 1] : NULL;
  if (!role || !text) return cli_error("%s: message %zu: expected \"role\" and \"content\", two texts", path, at);
  if (!strcmp(role, "system") && at == 0) {
    out->system = strdup(text);
    return out->system ? 0 : cli_error("out of memory");
  }
  if (!strcmp(role, "assistant") && last && !last->text) return file_read_answer(c, path, at, message, text, last);
  if (strcmp(role, "user") != 0)
    return cli_error("%s: message %zu: the role \"%s\" has no place here; expected a system message first, then user "
                     "and assistant in turn",
                     path, at, role);
  if (CLI_GROW(&out->turns, out->turn_count, 1, &out->turn_room)) return 1;
  out->turns[out->turn_count] = (struct chat_turn){.message = strdup(text)};
  return out->turns[out->turn_count++].message ? 0 : cli_error("out of memory");
}

static int file_read(const struct chat *c, const char *path, struct chat *out) {
  char *text;
  size_t bytes;
  json_error_t error;
  if (wn_file_load(c->ctx, path, FILE_LIMIT, &text, &bytes) != WN_OK) return cli_fail(c->ctx, WN_ERR_IO);
  json_t *root = json_loadb(text, bytes, 0, &error);
  wn_text_free(text);
  if (!root) return cli_error("%s: line %d: %s", path, error.line, error.text);
  const char *kind = json_string_value(json_object_get(root, "winnow"));
  const json_t *messages = json_object_get(root, "messages");
  int code = 0;
  if (!kind || strcmp(kind, "chat") != 0)
    code = cli_error("%s: \"winnow\" is not \"chat\": it is no saved conversation", path);
  else if (!json_is_array(messages))
    code = cli_error("%s: \"messages\" is not a list", path);
  for (size_t i = 0; !code && i < json_array_size(messages); i++)
    code = file_read_message(c, path, i, json_array_get(messages, i), out);
  json_decref(root);
  return code;
}

int chat_load(struct chat *c, const char *path) {
  struct chat loaded = {.session = NULL};
  int code = file_read(c, path, &loaded);
  if (!code) {
    chat_forget(c);
    free(c->turns);
    c->turns = loaded.turns, c->turn_count = loaded.turn_count, c->turn_room = loaded.turn_room;
    chat_set_system(c, loaded.system);
    code = chat_rebuild(c);
    if (code) chat_forget(c);
    return code;
  }
  chat_discard(&loaded);
  return code;
}
