/* server/words.h - a list of names in one string, separated by spaces: what a JSON
 * object or a query may contain. */
#ifndef SERVER_WORDS_H
#define SERVER_WORDS_H

#include <stdbool.h>
#include <string.h>

/* True if `word` is one of the words of `list` (NULL: of no words). */
static inline bool srv_has_word(const char *list, const char *word)
{
    const size_t n = strlen(word);

    while (list && *list) {
        const size_t len = strcspn(list, " ");

        if (len == n && !memcmp(list, word, n))
            return true;
        list += len + (list[len] == ' ');
    }
    return false;
}

#endif
