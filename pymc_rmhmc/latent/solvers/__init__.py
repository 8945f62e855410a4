"""The factorisations of one map, from standard normal noise to latent values under a prior times Gaussian sites.

With a prior ``x = L y``, ``η = m + A x``, sites b and w̄, s = √w̄ and M = AᵀW̄A it is

    y = E⁻¹(Lᵀ Aᵀ(b - W̄m + s z₂) + z₁),      E = I + LᵀM L.

`site_space` has E⁻¹ by a factor of ``I + s A L Lᵀ Aᵀ s``, (n, n), and `latent_space` by one of E, (k, k).
"""
