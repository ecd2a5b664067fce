#include "chat_input.h"
#include "ui.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

struct chat_input {
  bool terminal, quiet;
  struct chat_edit *edit; /* NULL: plain reading */
};

struct chat_input *chat_input_open(bool terminal, bool quiet, bool history) {
  struct chat_input *in = calloc(1, sizeof *in);
  if (!in) return NULL;
  *in = (struct chat_input){.terminal = terminal, .quiet = quiet, .edit = terminal ? chat_edit_open(history) : NULL};
  return in;
}

void chat_input_close(struct chat_input *in) {
  if (!in) return;
  chat_edit_close(in->edit);
  free(in);
}

/* --- without an editor --- */

static volatile sig_atomic_t interrupted;
static void input_on_interrupt(int number) {
  (void)number;
  interrupted = 1;
}

/* The terminal's marks around pasted text (bracketed paste). */
#define PASTE_BEGIN "\033[200~"
#define PASTE_END "\033[201~"

static bool input_take_mark(char *text, size_t *count, size_t begin, const char *mark) {
  const size_t n = strlen(mark);
  if (*count - begin < n || memcmp(text + *count - n, mark, n)) return false;
  *count -= n;
  return true;
}

/* Adds a line of standard input, without its end, to text[*count..CHAT_MESSAGE_LIMIT]. 1: there was one; 0: end of
 * input; -1: the message becomes too long. */
static int input_line(bool pastes, char *text, size_t *count) {
  const size_t begin = *count;
  bool pasted = false;
  int c, any = 0;
  while ((c = getchar()) != EOF && (c != '\n' || pasted)) {
    if (*count == CHAT_MESSAGE_LIMIT) return -1;
    text[(*count)++] = (char)c;
    any = 1;
    if (pastes && c == '~') {
      if (input_take_mark(text, count, begin, PASTE_BEGIN)) pasted = true;
      if (input_take_mark(text, count, begin, PASTE_END)) pasted = false;
    }
  }
  return any || c == '\n';
}

/* Prepares the terminal for reading a line: asks for marks around pastes, and turns off the echo of control
 * characters. */
static bool input_prepare(struct termios *before) {
  const char *term = getenv("TERM");
  struct termios now;
  if (tcgetattr(STDIN_FILENO, before)) return false;
  now = *before;
  now.c_lflag &= ~(tcflag_t)ECHOCTL;
  tcsetattr(STDIN_FILENO, TCSADRAIN, &now);
  if (term && *term && strcmp(term, "dumb") && isatty(STDERR_FILENO)) fputs("\033[?2004h", stderr);
  return true;
}

static void input_restore(const struct termios *before) {
  const char *term = getenv("TERM");
  if (term && *term && strcmp(term, "dumb") && isatty(STDERR_FILENO)) fputs("\033[?2004l", stderr);
  tcsetattr(STDIN_FILENO, TCSADRAIN, before);
}

static enum chat_read input_plain(const struct chat_input *in, const char *prompt, char *text, size_t *count) {
  struct sigaction drop = {.sa_handler = input_on_interrupt}, before; /* without SA_RESTART: reading returns */
  struct termios mode;
  bool prepared = false;
  interrupted = 0;
  if (in->terminal) {
    sigaction(SIGINT, &drop, &before);
    prepared = input_prepare(&mode);
    if (!in->quiet) fputs(prompt, stderr);
  }
  errno = 0;
  const int got = input_line(in->terminal, text, count);
  const bool dropped = got == 0 && errno == EINTR && interrupted;
  if (dropped) clearerr(stdin);
  if (prepared) input_restore(&mode);
  if (in->terminal) sigaction(SIGINT, &before, NULL);
  if (got < 0) {
    cli_error("standard input: a message of more than %zu bytes", CHAT_MESSAGE_LIMIT);
    return CHAT_READ_FAILED;
  }
  return dropped ? CHAT_READ_DROPPED : got ? CHAT_READ_MESSAGE : CHAT_READ_END;
}

static enum chat_read input_edited(const struct chat_input *in, const char *prompt, char *text, size_t *count,
                                   bool *empty) {
  char *line = NULL;
  enum chat_read got = chat_edit_line(in->edit, in->quiet ? "" : prompt, &line, empty);
  const size_t n = line ? strlen(line) : 0;
  if (n > CHAT_MESSAGE_LIMIT - *count) {
    cli_error("a message of more than %zu bytes", CHAT_MESSAGE_LIMIT);
    got = CHAT_READ_FAILED;
  } else if (n) {
    memcpy(text + *count, line, n + 1); /* the next line overwrites the NUL */
    *count += n;
  }
  free(line);
  return got;
}

enum chat_read chat_input_read(struct chat_input *in, char **message, bool *empty) {
  char *text = malloc(CHAT_MESSAGE_LIMIT + 1);
  size_t n = 0;
  enum chat_read got;
  bool any = false;
  *message = NULL;
  *empty = false;
  if (!text) {
    cli_error("out of memory");
    return CHAT_READ_FAILED;
  }
  for (bool more = true; more;) {
    const char *prompt = any ? ". " : "> ";
    const size_t begin = n;
    got = in->edit ? input_edited(in, prompt, text, &n, empty) : input_plain(in, prompt, text, &n);
    if (got != CHAT_READ_MESSAGE) break;
    any = true;
    while (n > begin && text[n - 1] == '\r') n--;
    more = n > begin && text[n - 1] == '\\';
    if (more) text[n - 1] = '\n';
  }
  if (got == CHAT_READ_END && any) got = CHAT_READ_MESSAGE; /* the input ends after a backslash */
  if (got == CHAT_READ_DROPPED) *empty = *empty && !any;
  if (in->terminal && (got == CHAT_READ_DROPPED || got == CHAT_READ_END)) fputc('\n', stderr);
  if (got != CHAT_READ_MESSAGE) {
    free(text);
    return got;
  }
  text[n] = 0;
  char *fitted = realloc(text, n + 1);
  *message = fitted ? fitted : text;
  if (in->edit && (*message)[0]) chat_edit_remember(in->edit, *message);
  return got;
}
