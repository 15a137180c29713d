# frozen_string_literal: true

require "digest"
require "openssl"
require "rack/request"
require "rack/utils"
require "jobqueue/sidecar/secret"

module Jobqueue
  module Sidecar
    # Who may have jobs executed: whoever knows the token or signs with the key. Without either, only this machine's
    # own loopback addresses and unix sockets, which in a pod are the worker beside us.
    class Authentication
      # Not all of 127.0.0.0/8: service meshes deliver other pods' requests from 127.0.0.6.
      LOOPBACK = %w[127.0.0.1 ::1 ::ffff:127.0.0.1].freeze

      # In the order in which they are signed.
      SIGNED_HEADERS = %w[HTTP_X_JOB_LAST_ATTEMPT HTTP_X_JOB_TIMEOUT].freeze

      def initialize(settings, now: -> { Time.now.to_i })
        @local = settings.local?
        @token = settings.token_file && Secret.new(settings.token_file)
        @hmac_key = settings.hmac_key_file && Secret.new(settings.hmac_key_file)
        @clock_skew = settings.clock_skew
        @now = now
      end

      # Why the request is refused, in words that tell no secret; nil when it is not. With both a token and a key
      # configured either will do, so that one can be exchanged for the other.
      def refusal(env, body)
        return by_address(env) unless @token || @hmac_key

        refusals = []
        refusals << by_token(env) if @token
        refusals << by_signature(env, body) if @hmac_key
        refusals.join("; ") if refusals.all?
      end

      private

      # Both ends of the connection. Puma says 127.0.0.1 of a peer that is gone already, wherever it was; but nobody else's
      # connection ends at our loopback address.
      def by_address(env)
        return if LOOPBACK.include?(env["REMOTE_ADDR"]) && arrived_on_loopback?(env["puma.socket"])

        "without JOBQUEUE_TOKEN_FILE or JOBQUEUE_HMAC_KEY_FILE only loopback addresses are served"
      end

      def arrived_on_loopback?(socket)
        return @local if socket.nil?

        address = socket.to_io.local_address
        address.unix? || LOOPBACK.include?(address.ip_address)
      rescue SystemCallError, IOError
        false
      end

      def by_token(env)
        scheme, given = env["HTTP_AUTHORIZATION"].to_s.split(" ", 2)
        return "no bearer token" unless scheme.to_s.casecmp?("bearer") && given

        "wrong bearer token" unless any_equal?(@token.candidates, given.strip)
      end

      def by_signature(env, body)
        timestamp = env["HTTP_X_JOBQUEUE_TIMESTAMP"].to_s
        given = env["HTTP_X_JOBQUEUE_SIGNATURE"].to_s
        return "no signature" if timestamp.empty? || given.empty?
        return "the timestamp is no number" unless timestamp.match?(/\A\d{1,12}\z/)

        # As it stands in the request line: signed, a recorded request is of no use elsewhere.
        path = Rack::Request.new(env).fullpath
        keys = @hmac_key.candidates
        right = equal(keys.map { |key| hmac(key, "#{timestamp}.#{path}.".b + body) }, given).index(true)
        # The signature first: who does not know the key does not learn what our clock says.
        return "wrong signature" unless right

        refusal = by_headers(env, given, keys[right])
        return refusal if refusal
        return if (@now.call - timestamp.to_i).abs <= @clock_skew

        "the timestamp is more than #{@clock_skew} s from this machine's clock"
      end

      # What a job's headers decide (whether it dies, how long somebody waits) counts only if it is signed too.
      # Without that signature (an older worker has none, or somebody took it away) it is as if it had not been said; so is
      # what is never signed.
      def by_headers(env, signature, key)
        env.delete("HTTP_X_JOB_QUEUE")
        given = env["HTTP_X_JOBQUEUE_HEADERS_SIGNATURE"]
        if given.nil?
          SIGNED_HEADERS.each { |name| env.delete(name) }
          return
        end

        words = SIGNED_HEADERS.map { |name| env[name].to_s }
        "wrong signature of the headers" unless any_equal?([hmac(key, [signature, *words].join("."))], given)
      end

      def hmac(key, text)
        "sha256=#{OpenSSL::HMAC.hexdigest("SHA256", key, text)}"
      end

      # In constant time, whatever the lengths: digests of both are compared, and all candidates each time.
      def equal(candidates, given)
        digest = Digest::SHA256.hexdigest(given)
        candidates.map { |candidate| Rack::Utils.secure_compare(Digest::SHA256.hexdigest(candidate), digest) }
      end

      def any_equal?(candidates, given)
        equal(candidates, given).any?
      end
    end
  end
end
