"""What dropout takes away, from docs/reference/dropout.md alone. Used by training_test.py."""

import numpy
import torch

from samples import Stream

RATE = 0.1
EMBEDDING, ATTENTION, PROJECTION, MLP = range(4)
WORD = numpy.uint64(2**32 - 1)


def philox(counter, key):
    """Philox4x32-10 of four arrays, in uint64."""
    c = [numpy.asarray(word, numpy.uint64) for word in counter]
    k = list(key)
    for _ in range(10):
        p = numpy.uint64(0xd2511f53) * c[0]
        q = numpy.uint64(0xcd9e8d57) * c[2]
        c = [(q >> numpy.uint64(32)) ^ c[1] ^ numpy.uint64(k[0]), q & WORD,
             (p >> numpy.uint64(32)) ^ c[3] ^ numpy.uint64(k[1]), p & WORD]
        k = [(k[0] + 0x9e3779b9) & 0xffffffff, (k[1] + 0xbb67ae85) & 0xffffffff]
    return c


def grid(*sizes):
    return numpy.ix_(*(numpy.arange(size) for size in sizes))


class Dropout:
    """Of one step: factors, 0 where an element goes, 1 / 0.9 where it stays."""

    def __init__(self, seed, step):
        bits = Stream(seed, "dropout", step).next()
        self.key = (bits & 0xffffffff, bits >> 32)

    def factors(self, element, position, sample, place):
        numbers = numpy.stack(numpy.broadcast_arrays(
            *philox((element // 4, position, sample, place), self.key)), -1)
        which = numpy.broadcast_to((element % 4)[..., None], numbers.shape[:-1] + (1,))
        number = numpy.take_along_axis(numbers, which, -1)[..., 0]
        stays = number >= numpy.uint64(int(RATE * 2**32))
        return torch.from_numpy(stays).to(torch.float32) / (1 - RATE)

    def hidden(self, x, site, layer=0):
        """Of x [samples, positions, channels]."""
        sample, position, channel = grid(*x.shape)
        return x * self.factors(channel, position, sample, layer * 2**16 + site * 2**14)

    def attention(self, weights, layer):
        """Of weights [samples, heads, queries, keys]."""
        sample, head, query, key = grid(*weights.shape)
        place = layer * 2**16 + ATTENTION * 2**14 + head
        return weights * self.factors(key, query, sample, place)


class NoDropout:
    """Leaves everything as it is."""

    def hidden(self, x, site, layer=0):
        return x

    def attention(self, weights, layer):
        return weights
