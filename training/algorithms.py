"""Short Python programs for the code chats: name -> (what it does, source)."""

ALGORITHMS = {
    "quicksort": (
        "sorts a list with quicksort",
        """\
def quicksort(items):
    if len(items) <= 1:
        return items
    pivot = items[len(items) // 2]
    left = [x for x in items if x < pivot]
    middle = [x for x in items if x == pivot]
    right = [x for x in items if x > pivot]
    return quicksort(left) + middle + quicksort(right)""",
    ),
    "merge_sort": (
        "sorts a list with merge sort",
        """\
def merge_sort(items):
    if len(items) <= 1:
        return items
    mid = len(items) // 2
    left = merge_sort(items[:mid])
    right = merge_sort(items[mid:])
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    result.extend(left[i:])
    result.extend(right[j:])
    return result""",
    ),
    "bubble_sort": (
        "sorts a list with bubble sort",
        """\
def bubble_sort(items):
    n = len(items)
    for i in range(n):
        for j in range(0, n - i - 1):
            if items[j] > items[j + 1]:
                items[j], items[j + 1] = items[j + 1], items[j]
    return items""",
    ),
    "binary_search": (
        "finds a value in a sorted list with binary search",
        """\
def binary_search(items, target):
    low, high = 0, len(items) - 1
    while low <= high:
        mid = (low + high) // 2
        if items[mid] == target:
            return mid
        if items[mid] < target:
            low = mid + 1
        else:
            high = mid - 1
    return -1""",
    ),
    "fibonacci": (
        "returns the n-th Fibonacci number",
        """\
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a""",
    ),
    "factorial": (
        "returns n factorial",
        """\
def factorial(n):
    result = 1
    for i in range(2, n + 1):
        result *= i
    return result""",
    ),
    "is_prime": (
        "tells whether n is a prime number",
        """\
def is_prime(n):
    if n < 2:
        return False
    i = 2
    while i * i <= n:
        if n % i == 0:
            return False
        i += 1
    return True""",
    ),
    "gcd": (
        "returns the greatest common divisor of two numbers",
        """\
def gcd(a, b):
    while b:
        a, b = b, a % b
    return a""",
    ),
    "is_palindrome": (
        "tells whether a string is a palindrome",
        """\
def is_palindrome(text):
    cleaned = [c.lower() for c in text if c.isalnum()]
    return cleaned == cleaned[::-1]""",
    ),
    "reverse_string": (
        "reverses a string",
        """\
def reverse_string(text):
    return text[::-1]""",
    ),
    "count_words": (
        "counts the words of a text",
        """\
def count_words(text):
    counts = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts""",
    ),
    "flatten": (
        "flattens a nested list",
        """\
def flatten(items):
    result = []
    for item in items:
        if isinstance(item, list):
            result.extend(flatten(item))
        else:
            result.append(item)
    return result""",
    ),
    "bfs": (
        "visits a graph in breadth-first order",
        """\
from collections import deque


def bfs(graph, start):
    seen = {start}
    queue = deque([start])
    order = []
    while queue:
        node = queue.popleft()
        order.append(node)
        for neighbor in graph[node]:
            if neighbor not in seen:
                seen.add(neighbor)
                queue.append(neighbor)
    return order""",
    ),
    "dfs": (
        "visits a graph in depth-first order",
        """\
def dfs(graph, start, seen=None):
    if seen is None:
        seen = set()
    seen.add(start)
    order = [start]
    for neighbor in graph[start]:
        if neighbor not in seen:
            order.extend(dfs(graph, neighbor, seen))
    return order""",
    ),
    "transpose": (
        "transposes a matrix",
        """\
def transpose(matrix):
    return [list(row) for row in zip(*matrix)]""",
    ),
    "two_sum": (
        "finds two indices whose values add up to the target",
        """\
def two_sum(nums, target):
    seen = {}
    for i, num in enumerate(nums):
        rest = target - num
        if rest in seen:
            return [seen[rest], i]
        seen[num] = i
    return None""",
    ),
    "lru_cache": (
        "implements a least recently used cache",
        """\
from collections import OrderedDict


class LRUCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.data = OrderedDict()

    def get(self, key):
        if key not in self.data:
            return None
        self.data.move_to_end(key)
        return self.data[key]

    def put(self, key, value):
        self.data[key] = value
        self.data.move_to_end(key)
        if len(self.data) > self.capacity:
            self.data.popitem(last=False)""",
    ),
    "matmul": (
        "multiplies two matrices",
        """\
def matmul(a, b):
    rows, inner, cols = len(a), len(b), len(b[0])
    result = [[0] * cols for _ in range(rows)]
    for i in range(rows):
        for j in range(cols):
            for k in range(inner):
                result[i][j] += a[i][k] * b[k][j]
    return result""",
    ),
}
