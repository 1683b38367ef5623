"""Which tokens a sample holds, from docs/reference/data.md alone. Used by training_test.py."""

import struct

BITS = 2**64 - 1


def write_corpus(prefix, documents):
    """PREFIX.bin and PREFIX.idx of lists of tokens, as uint16."""
    lengths = [len(document) for document in documents]
    count = len(documents)
    offsets = [2 * sum(lengths[:i]) for i in range(count)]
    with open(f"{prefix}.bin", "wb") as file:
        for document in documents:
            file.write(struct.pack(f"<{len(document)}H", *document))
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1))
        file.write(struct.pack(f"<{count}i{count}q{count + 1}q", *lengths, *offsets,
                               *range(count + 1)))


def mix(x):
    x = (x + 0x9e3779b97f4a7c15) & BITS
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & BITS
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & BITS
    return x ^ (x >> 31)


def rotl(x, count):
    return (x << count | x >> (64 - count)) & BITS


class Stream:
    """xoshiro256**."""

    def __init__(self, seed, name, index):
        key = mix(seed)
        for byte in name.encode():
            key = mix(key ^ byte)
        x = mix(key ^ mix(index))
        self.state = [mix((x + i * 0x9e3779b97f4a7c15) & BITS) for i in range(4)]

    def next(self):
        s = self.state
        result = rotl(s[1] * 5 & BITS, 7) * 9 & BITS
        shifted = s[1] << 17 & BITS
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= shifted
        s[3] = rotl(s[3], 45)
        return result

    def below(self, bound):
        while True:
            value = self.next()
            if value >= 2**64 % bound:
                return value % bound


def place_of(place, count, key):
    """A Feistel network of six rounds over the least even number of bits that holds `count`,
    again until the result is below `count`."""
    half = ((count - 1).bit_length() + 1) // 2
    while True:
        left, right = place >> half, place & (2**half - 1)
        for i in range(6):
            left, right = right, left ^ (mix(mix((key + i) & BITS) ^ right) & (2**half - 1))
        place = left << half | right
        if place < count:
            return place


class Samples:
    """Sample g of a corpus: `length` + 1 tokens."""

    def __init__(self, documents, length, seed):
        self.documents, self.length, self.seed = documents, length, seed
        self.per_epoch = (sum(map(len, documents)) - 1) // length

    def __getitem__(self, g):
        epoch, place = divmod(g, self.per_epoch)
        order = list(range(len(self.documents)))
        stream = Stream(self.seed, "data/documents", epoch)
        for i in range(len(order), 1, -1):
            j = stream.below(i)
            order[i - 1], order[j] = order[j], order[i - 1]
        tokens = [token for i in order for token in self.documents[i]]
        key = Stream(self.seed, "data/samples", epoch).next()
        first = place_of(place, self.per_epoch, key) * self.length
        return tokens[first:first + self.length + 1]
