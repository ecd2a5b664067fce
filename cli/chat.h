/* A conversation: what cmd_chat.c and the files chat_*.c share.
 *
 * Turns are kept as the user's text and the tokens of the answer. The session has read a beginning of `ids`, the tokens
 * of the turns from `first` on; what it has not read yet is read with the next answer. So anything that changes what
 * has been said (a turn that goes, another system message, a loaded file) writes `ids` anew and resets the session, and
 * nothing else has to know. */
#ifndef CLI_CHAT_H
#define CLI_CHAT_H

#include <jansson.h>
#include <winnow/chat.h>
#include <winnow/generate.h>
#include <winnow/model.h>
#include "args.h"
#include "format.h"
#include "load.h"

struct chat_request {
  struct cli_common common;
  struct cli_loading load;
  struct cli_sampling sampling;
  struct cli_dialogue dialogue;
  struct cli_format format;
  struct cli_list stop;
  int64_t tokens, context;
  bool show_context, no_history;
};

struct chat_ids {
  int32_t *data; /* [count] */
  size_t count, room;
};

struct chat_turn {
  char *message;
  struct chat_ids prompt; /* what stands before the answer, from the end of the answer before */
  struct chat_ids answer;
  char *text; /* the answer's */
};

struct chat {
  wn_context *ctx;
  struct chat_request *r;
  struct cli_loaded in;
  wn_session *session;
  wn_session *before; /* the session as it was when the last turn began, for /regen and --stop; NULL: not kept */
  bool before_holds;
  wn_constraint *constraint;
  struct cli_dialogue_choice dialogue;
  char *system;     /* of /system and /load; dialogue.system points to it */
  int64_t capacity; /* tokens that the session can read */
  bool endless;     /* every layer evicts and counts positions in its cache: the text has no longest length */
  struct chat_turn *turns;
  size_t turn_count, turn_room, first; /* turns before `first` are forgotten */
  struct chat_ids ids;                 /* of turns first.. */
  bool terminal;
  uint64_t drawn; /* since the conversation began: the sampling's steps */
  int64_t answers, tokens, fed;
  double feed_seconds, draw_seconds;
  json_t *log;         /* --json: a list of answers */
  struct cli_list own; /* values of /set */
};

/* --- the conversation (chat_turns.c); 0, or 1 after reporting --- */

int chat_ids_add(struct chat_ids *ids, const int32_t *more, size_t count);
/* Appends a turn without an answer. */
int chat_add_turn(struct chat *c, const char *message);
/* Makes the session capacity for `more` tokens, if need be by forgetting the oldest turns, never the last one. */
int chat_make_room(struct chat *c, int64_t more);
/* Writes the tokens of turns first.. anew; the session reads all of them with the next answer. */
int chat_rebuild(struct chat *c);
void chat_remove_turn(struct chat *c);            /* the last one; the session must not have read of it */
void chat_forget(struct chat *c);                 /* begins a new conversation */
void chat_set_system(struct chat *c, char *text); /* malloc'd, the chat's from now on; NULL: none */
/* Opens a session by the request, which may have changed, in place of the one that is open. */
int chat_open_session(struct chat *c);
void chat_discard(struct chat *c); /* frees turns and system message, of a conversation without a session too */
void chat_close(struct chat *c);

/* --- an answer (chat_answer.c) --- */

struct chat_result {
  wn_generate_end end;
  int64_t tokens;
  double seconds;
};
/* Reads what the session has not read and draws an answer to the last turn. The exit code after reporting. */
int chat_answer(struct chat *c, struct chat_result *out);
/* Takes the last answer back, for another one. False: there is none. */
bool chat_take_back(struct chat *c);

/* --- what is kept (chat_show.c) --- */

struct chat_kept {
  int64_t tokens; /* of the conversation */
  int64_t kept;   /* in the cache of a layer at least, or not read yet */
  double mean;    /* tokens that a layer holds, mean over the layers */
};
int chat_count_kept(const struct chat *c, struct chat_kept *out);
/* Prints the conversation, what no layer holds struck through (~~ on anything but a terminal). */
int chat_print_context(const struct chat *c);
/* Text on a terminal, whose control characters a model must not send: "?" stands for them. False: it was not written.
 */
bool chat_put_safely(const char *text, size_t bytes);
/* The same as a list of {"text", "layers"}: how many layers hold each token; null: not read yet. NULL: out of memory.
 */
json_t *chat_context_json(const struct chat *c);

/* --- files (chat_file.c) --- */

int chat_save(struct chat *c, const char *path);
int chat_load(struct chat *c, const char *path);

/* --- commands (chat_commands.c) --- */

enum chat_next {
  CHAT_MESSAGE, /* no command */
  CHAT_DONE,
  CHAT_ANSWER, /* the last turn is to be answered */
  CHAT_LEAVE
};
enum chat_next chat_command(struct chat *c, const char *line);
/* The command that begins with these letters, if there is one alone. */
const char *chat_complete(const char *begin);

#endif
