# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A small notebook for the tests of tools/
#
# It has one of everything: a formula, a figure, a table, a progress bar, a cell to compare.

# %% [markdown] tags=["badges"]
# written by make notebooks

# %% cellView="form" tags=["setup"]
print("written by make notebooks")

# %% [markdown]
# ## What you will learn
#
# The ball $B(x, \varepsilon)$ and $$\max_{\|\delta\| \le \varepsilon} \ell(x + \delta)$$
#
# | class | error |
# |---|---|
# | Shirt | 32 % |

# %% alt="A line that rises from 0 to 2"
import matplotlib.pyplot as plt
from tqdm import tqdm

plt.figure(figsize=(2, 1))
plt.plot(list(tqdm(range(3))))
plt.show()

# %%
import os
import urllib.request

try:
    urllib.request.urlopen("http://example.org", timeout=5)
except OSError:
    print("no network, no models folder:", os.environ.get("COURSE_MODELS"))

# %%
third = 1 / 3
assert 0.3 < third < 0.4
print(f"{third:.2f}")
