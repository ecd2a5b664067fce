/* Line editing and history with libedit: emacs keys, or what ~/.editrc says. Bracketed paste is handled here: the
 * terminal puts ESC [200~ and ESC [201~ around pasted text, and everything between is inserted into the line, line ends
 * included. */
#include "chat_input.h"

#ifdef WINNOW_LIBEDIT
#include <histedit.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "chat.h"
#include "files.h"

enum { HISTORY_MESSAGES = 1000 };

struct chat_edit {
  EditLine *line;
  History *history;
  const char *prompt;
  bool dropped, empty; /* dropped: Ctrl-C was pressed; empty: on an empty line */
  char path[PATH_MAX]; /* of the history; "": none */
};

static struct chat_edit *edit_of(EditLine *line) {
  struct chat_edit *e = NULL;
  el_get(line, EL_CLIENTDATA, &e);
  return e;
}

static char *edit_prompt(EditLine *line) {
  return (char *)edit_of(line)->prompt;
}

/* --- keys --- */

static unsigned char edit_on_paste(EditLine *line, int key) {
  static const wchar_t end[] = L"\033[201~";
  const size_t mark = wcslen(end);
  size_t n = 0, room = 256;
  wchar_t c, *text = malloc(room * sizeof *text), *wider;
  (void)key;
  while (text && el_wgetc(line, &c) == 1) {
    if (n + 2 > room) {
      if (room > CHAT_MESSAGE_LIMIT || !(wider = realloc(text, 2 * room * sizeof *text))) break;
      text = wider;
      room *= 2;
    }
    text[n++] = c;
    if (n >= mark && !wmemcmp(text + n - mark, end, mark)) {
      n -= mark;
      break;
    }
  }
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) {
    if (text[i] == L'\r' && i + 1 < n && text[i + 1] == L'\n') continue;
    const wchar_t is = text[i] == L'\r' ? L'\n' : text[i];
    if (is >= L' ' || is == L'\n' || is == L'\t') text[kept++] = is; /* no other control character */
  }
  while (kept > 0 && text[kept - 1] == L'\n') kept--;
  if (text) text[kept] = 0;
  if (kept) el_winsertstr(line, text);
  free(text);
  return CC_REFRESH;
}

static unsigned char edit_on_newline(EditLine *line, int key) {
  (void)key;
  return el_insertstr(line, "\n") ? CC_ERROR : CC_REFRESH;
}

static unsigned char edit_on_interrupt(EditLine *line, int key) {
  struct chat_edit *e = edit_of(line);
  const LineInfo *info = el_line(line);
  (void)key;
  e->dropped = true;
  e->empty = info->lastchar == info->buffer;
  return CC_NEWLINE;
}

static void edit_marks(bool on) {
  fputs(on ? "\033[?2004h" : "\033[?2004l", stderr);
  fflush(stderr);
}

static unsigned char edit_on_suspend(EditLine *line, int key) {
  (void)key;
  edit_marks(false);
  el_set(line, EL_PREP_TERM, 0);
  raise(SIGTSTP);
  el_set(line, EL_PREP_TERM, 1);
  edit_marks(true);
  return CC_REDISPLAY;
}

/* Completes a command at the beginning of the line. */
static unsigned char edit_on_tab(EditLine *line, int key) {
  const LineInfo *info = el_line(line);
  const size_t n = (size_t)(info->cursor - info->buffer);
  char begin[32];
  (void)key;
  if (info->buffer == info->lastchar || info->buffer[0] != '/' || n >= sizeof begin) return CC_ERROR;
  memcpy(begin, info->buffer, n);
  begin[n] = 0;
  const char *whole = chat_complete(begin);
  if (!whole || el_insertstr(line, whole + n)) return CC_ERROR;
  return CC_REFRESH;
}

static void edit_bind(EditLine *line) {
  static const struct {
    const wchar_t *name, *help; /* wide strings, because libedit never frees its copies of narrow ones */
    const char *key, *bound;
    unsigned char (*run)(EditLine *, int);
  } rows[] = {
      {L"chat-paste", L"insert what is pasted", "\033[200~", "chat-paste", edit_on_paste},
      {L"chat-newline", L"a line end in the message", "\033\r", "chat-newline", edit_on_newline},
      {L"chat-interrupt", L"drop the message", "\003", "chat-interrupt", edit_on_interrupt},
      {L"chat-suspend", L"stop the program", "\032", "chat-suspend", edit_on_suspend},
      {L"chat-complete", L"complete a command", "\t", "chat-complete", edit_on_tab},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    el_wset(line, EL_ADDFN, rows[i].name, rows[i].help, rows[i].run);
    el_set(line, EL_BIND, rows[i].key, rows[i].bound, NULL);
  }
  el_set(line, EL_BIND, "^R", "em-inc-search-prev", NULL);
  el_set(line, EL_SETTY, "-d", "-isig", NULL); /* Ctrl-C and Ctrl-Z come as keys */
}

/* --- the history: $XDG_STATE_HOME/winnow/chat_history, for its owner alone --- */

static void edit_load_history(struct chat_edit *e) {
  const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
  HistEvent event;
  char folder[PATH_MAX - 32];
  int n = -1;
  if (state && state[0] == '/') /* the XDG specification ignores relative paths */
    n = snprintf(folder, sizeof folder, "%s/winnow", state);
  else if (home && home[0] == '/')
    n = snprintf(folder, sizeof folder, "%s/.local/state/winnow", home);
  if (n < 0 || n >= (int)sizeof folder) return;
  const mode_t mask = umask(077);
  const bool made = cli_make_folder(folder) == 0;
  umask(mask);
  if (!made) return;
  snprintf(e->path, sizeof e->path, "%s/chat_history", folder);
  history(e->history, &event, H_LOAD, e->path);
}

/* After every message, so that nothing is lost when the terminal goes. */
static void edit_save_history(const struct chat_edit *e) {
  char part[PATH_MAX + 32];
  HistEvent event;
  if (!e->path[0]) return;
  snprintf(part, sizeof part, "%s.%ld", e->path, (long)getpid());
  FILE *file = cli_create_private(part);
  if (!file) return;
  const bool written = history(e->history, &event, H_SAVE_FP, file) >= 0;
  if (fclose(file) || !written || rename(part, e->path)) unlink(part);
}

void chat_edit_remember(struct chat_edit *e, const char *message) {
  HistEvent event;
  if (history(e->history, &event, H_ENTER, message) >= 0) edit_save_history(e);
}

/* --- lines --- */

struct chat_edit *chat_edit_open(bool keeps) {
  const char *term = getenv("TERM");
  HistEvent event;
  if (!term || !*term || !strcmp(term, "dumb") || !isatty(STDERR_FILENO)) return NULL;
  struct chat_edit *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
  e->line = el_init("winnow", stdin, stderr, stderr);
  e->history = history_init();
  if (!e->line || !e->history) {
    chat_edit_close(e);
    return NULL;
  }
  history(e->history, &event, H_SETSIZE, HISTORY_MESSAGES);
  history(e->history, &event, H_SETUNIQUE, 1);
  if (keeps) edit_load_history(e);
  el_set(e->line, EL_CLIENTDATA, e);
  el_set(e->line, EL_PROMPT, edit_prompt);
  el_set(e->line, EL_SIGNAL, 1);
  el_set(e->line, EL_EDITOR, "emacs");
  el_set(e->line, EL_HIST, history, e->history);
  edit_bind(e->line);
  el_source(e->line, NULL);
  return e;
}

void chat_edit_close(struct chat_edit *e) {
  if (!e) return;
  if (e->line) el_end(e->line);
  if (e->history) history_end(e->history);
  free(e);
}

enum chat_read chat_edit_line(struct chat_edit *e, const char *prompt, char **line, bool *empty) {
  int count = 0;
  e->prompt = prompt;
  e->dropped = false;
  edit_marks(true);
  const char *text = el_gets(e->line, &count);
  edit_marks(false);
  *empty = e->dropped && e->empty;
  if (e->dropped) return CHAT_READ_DROPPED;
  if (!text || count <= 0) return CHAT_READ_END;
  size_t n = strlen(text);
  if (n && text[n - 1] == '\n') n--;
  if (!(*line = strndup(text, n))) return CHAT_READ_END;
  return CHAT_READ_MESSAGE;
}

#else /* without libedit plain reading is used */
#include <stddef.h>

struct chat_edit *chat_edit_open(bool history) {
  (void)history;
  return NULL;
}
void chat_edit_close(struct chat_edit *e) {
  (void)e;
}
enum chat_read chat_edit_line(struct chat_edit *e, const char *prompt, char **line, bool *empty) {
  (void)e, (void)prompt, (void)line, (void)empty;
  return CHAT_READ_END;
}
void chat_edit_remember(struct chat_edit *e, const char *message) {
  (void)e, (void)message;
}
#endif
